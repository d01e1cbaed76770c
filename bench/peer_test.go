package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// peerEnv has the test binary serve, as the second process of benchmarks. Its
// value is the stack and the network, between them a space.
const peerEnv = "NEARCALL_BENCH_PEER"

// servePeer serves until its standard input ends, and prints where.
func servePeer(stack, network string) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(dir, "s")
	}
	lis, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	type server interface {
		grpc.ServiceRegistrar
		Serve(net.Listener) error
		Stop()
	}
	var srv server = grpc.NewServer()
	var serve net.Listener = lis
	if stack == "nearcall" {
		srv, serve = nearcall.NewServer(), &sock.Listener{Listener: lis}
	}
	register(srv, service{messages: 100})
	go func() { _ = srv.Serve(serve) }()
	fmt.Println(lis.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	srv.Stop()
	return err
}

// overPeer connects to a second process.
func overPeer(stack, network string) func(Services) (Conn, error) {
	return func(Services) (Conn, error) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), peerEnv+"="+stack+" "+network)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return Conn{}, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return Conn{}, err
		}
		if err := cmd.Start(); err != nil {
			return Conn{}, err
		}
		end := func() {
			_ = in.Close()
			_ = cmd.Wait()
		}
		address, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			end()
			return Conn{}, err
		}
		address = strings.TrimSpace(address)
		var conn interface {
			grpc.ClientConnInterface
			Close() error
		}
		if stack == "nearcall" {
			d := sock.Dialer{Target: network, Network: network, Address: address}
			conn, err = nearcall.NewClient("inproc:peer", hook.Dialer(d).(nearcall.DialOption))
		} else {
			target := "passthrough:" + address
			if network == "unix" {
				target = "unix:" + address
			}
			conn, err = grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		}
		if err != nil {
			end()
			return Conn{}, err
		}
		return stubs(conn, func() {
			_ = conn.Close()
			end()
		}), nil
	}
}

// BenchmarkPeer calls a second process.
func BenchmarkPeer(b *testing.B) {
	rows := []Row{
		{Name: "unary-32B", Kind: Unary, Size: 32},
		{Name: "unary-1MB", Kind: Unary, Size: 1 << 20},
		{Name: "unary-32B-64-callers", Kind: Unary, Size: 32, Callers: 64},
		{Name: "server-stream-100x32B", Kind: ServerStream, Size: 32, Messages: 100, Cancellable: true},
		{Name: "bidi-echo-32B", Kind: BidiEcho, Size: 32, Cancellable: true},
	}
	for _, row := range rows {
		for _, network := range []string{"unix", "tcp"} {
			for _, stack := range []string{"nearcall", "grpc"} {
				b.Run("row="+row.Name+"/net="+network+"/rival="+stack, func(b *testing.B) {
					bench(b, row, Rival{Name: stack, Connect: overPeer(stack, network)})
				})
			}
		}
	}
}
