package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
)

// A way pairs a path of nearcall with the path of grpc-go that it is compared with.
type way struct {
	name      string
	near, far func() (c caller, stop func(), err error)
}

func ways() []way {
	all := []way{
		{"in process; bufconn", inProcess, overBufconn},
		{"unix", overPeer("nearcall", "unix"), overPeer("grpc-go", "unix")},
		{"tcp", overPeer("nearcall", "tcp"), overPeer("grpc-go", "tcp")},
	}
	if runtime.GOOS == "linux" {
		all = slices.Insert(all, 1, way{"shm; unix", overPeer("nearcall", "shm"), overPeer("grpc-go", "unix")})
	}
	return all
}

func newNearcallServer() *nearcall.Server {
	m := newMiddleware()
	srv := nearcall.NewServer(nearcall.StatsHandler(m.serverStats),
		nearcall.ChainUnaryInterceptor(m.serverUnary...), nearcall.ChainStreamInterceptor(m.serverStream...))
	newShop().register(srv)
	return srv
}

func nearcallOptions() []nearcall.DialOption {
	m := newMiddleware()
	return []nearcall.DialOption{
		nearcall.WithStatsHandler(m.clientStats), nearcall.WithDisableSharedMemory(),
		nearcall.WithUnaryInterceptor(m.clientUnary), nearcall.WithStreamInterceptor(m.clientStream),
	}
}

func newGRPCServer() *grpc.Server {
	m := newMiddleware()
	srv := grpc.NewServer(grpc.StatsHandler(m.serverStats),
		grpc.ChainUnaryInterceptor(m.serverUnary...), grpc.ChainStreamInterceptor(m.serverStream...))
	newShop().register(srv)
	return srv
}

func dialGRPC(target string, opts ...grpc.DialOption) (caller, func() error, error) {
	m := newMiddleware()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithStatsHandler(m.clientStats), grpc.WithUnaryInterceptor(m.clientUnary), grpc.WithStreamInterceptor(m.clientStream))...)
	if err != nil {
		return caller{}, nil, err
	}
	return newCaller(conn), conn.Close, nil
}

func inProcess() (caller, func(), error) {
	srv := newNearcallServer()
	conn := srv.Client(nearcallOptions()...)
	return newCaller(conn), func() {
		_ = conn.Close()
		srv.Stop()
	}, nil
}

func overBufconn() (caller, func(), error) {
	srv := newGRPCServer()
	lis := bufconn.Listen(1 << 20)
	go func() { _ = srv.Serve(lis) }()
	c, stop, err := dialGRPC("passthrough:///bufconn", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
	if err != nil {
		srv.Stop()
		return c, nil, err
	}
	return c, func() {
		_ = stop()
		srv.Stop()
	}, nil
}

// overPeer returns a function that starts a second process that serves, and connects to it.
func overPeer(stack, network string) func() (caller, func(), error) {
	return func() (_ caller, stop func(), err error) {
		dir, err := os.MkdirTemp("", "realistic")
		if err != nil {
			return caller{}, nil, err
		}
		undo := []func() error{func() error { return os.RemoveAll(dir) }}
		stop = func() {
			for _, f := range slices.Backward(undo) {
				_ = f()
			}
		}
		defer func() {
			if err != nil {
				stop()
			}
		}()
		target := "tcp:127.0.0.1:0"
		if network != "tcp" {
			target = network + ":" + filepath.Join(dir, "s")
		}
		at, stopPeer, err := startPeer(stack + " " + target)
		if err != nil {
			return caller{}, nil, err
		}
		undo = append(undo, stopPeer)
		if stack == "grpc-go" {
			if address, ok := strings.CutPrefix(at, "tcp:"); ok {
				at = "passthrough:///" + address
			}
			c, stopClient, err := dialGRPC(at)
			if err == nil {
				undo = append(undo, stopClient)
			}
			return c, stop, err
		}
		conn, err := nearcall.NewClient(at, nearcallOptions()...)
		if err != nil {
			return caller{}, nil, err
		}
		undo = append(undo, conn.Close)
		return newCaller(conn), stop, nil
	}
}

// startPeer starts this program as a second process that serves what, and returns the target to dial.
func startPeer(what string) (at string, stop func() error, err error) {
	peer := exec.Command(os.Args[0], "-serve", what)
	peer.Stderr = os.Stderr
	in, err := peer.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := peer.StdoutPipe()
	if err == nil {
		err = peer.Start()
	}
	if err != nil {
		return "", nil, errors.Join(err, in.Close())
	}
	stop = func() error { return errors.Join(in.Close(), peer.Wait()) }
	if at, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		return "", nil, errors.Join(fmt.Errorf("where it serves: %w", err), stop())
	}
	return strings.TrimSpace(at), stop, nil
}

// servePeer serves until its standard input ends.
func servePeer(what string) error {
	stack, target, _ := strings.Cut(what, " ")
	var srv interface {
		Serve(net.Listener) error
		Stop()
	}
	var lis net.Listener
	switch stack {
	case "nearcall":
		near, err := nearcall.Listen(target)
		if err != nil {
			return err
		}
		srv, lis, target = newNearcallServer(), near, near.Target()
	case "grpc-go":
		network, address, _ := strings.Cut(target, ":")
		far, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		srv, lis, target = newGRPCServer(), far, network+":"+far.Addr().String()
	default:
		return errors.New("-serve takes nearcall or grpc-go, and a target")
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	fmt.Println(target)
	_, err := io.Copy(io.Discard, os.Stdin)
	srv.Stop()
	return errors.Join(err, <-ended)
}
