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
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// processEnv makes the command serve, as the second process of a tour. Its value
// is who serves, and the target that is listened on.
const processEnv = "NEARCALL_TOUR_PROCESS"

const (
	byNearcall = "nearcall"
	byGRPC     = "grpc-go"
)

// beTheProcess serves as the environment says, if it says so, and reports
// whether it did.
func beTheProcess() bool {
	value, ok := os.LookupEnv(processEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt) // ctrl-C ends the tour, and with it the input
	who, target, _ := strings.Cut(value, " ")
	if err := serveTarget(who, target, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "nearcall tour: the second process: %v\n", err)
		os.Exit(exitFailed)
	}
	return true
}

// serveTarget serves until in ends. It writes where to out.
func serveTarget(who, target string, in io.Reader, out io.Writer) error {
	var srv interface {
		grpc.ServiceRegistrar
		Serve(net.Listener) error
		Stop()
	}
	var lis net.Listener
	if who == byNearcall {
		near, err := nearcall.Listen(target)
		if err != nil {
			return err
		}
		srv, lis, target = nearcall.NewServer(), near, near.Target()
	} else {
		network, address, _ := strings.Cut(target, ":")
		far, err := net.Listen(network, address)
		if err != nil {
			return err
		}
		srv, lis, target = grpc.NewServer(), far, network+":"+far.Addr().String()
	}
	testpb.RegisterTestServiceServer(srv, service{})
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	_, err := fmt.Fprintln(out, target)
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	srv.Stop()
	if served := <-ended; !errors.Is(served, grpc.ErrServerStopped) { // stopped before it served
		err = errors.Join(err, served)
	}
	return err
}

// overProcess leads to a second process, which has the service itself.
func overProcess(who, network string) func(testpb.TestServiceServer) (connection, error) {
	return func(testpb.TestServiceServer) (connection, error) {
		target, stop, err := startProcess(who, network)
		if err != nil {
			return connection{}, err
		}
		conn, err := dialTarget(who, target)
		if err != nil {
			return connection{}, errors.Join(err, stop())
		}
		return connection{
			ctx:    context.Background(),
			client: testpb.NewTestServiceClient(conn),
			close:  func() error { return errors.Join(conn.Close(), stop()) },
		}, nil
	}
}

type clientConn interface {
	grpc.ClientConnInterface
	Close() error
}

// dialTarget returns a connection to where a second process serves. A unix socket
// stays one: shared memory is a path of its own.
func dialTarget(who, target string) (clientConn, error) {
	if who == byNearcall {
		return nearcall.NewClient(target, nearcall.WithoutUpgrade())
	}
	if address, ok := strings.CutPrefix(target, "tcp:"); ok {
		target = "passthrough:" + address
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
}

// patience is how long a process may take to end before it is killed.
const patience = 10 * time.Second

// startProcess starts this command again, and returns the target that it
// serves. stop returns when the process has ended.
func startProcess(who, network string) (target string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	target, dir := "tcp:127.0.0.1:0", ""
	if network != "tcp" {
		if dir, err = os.MkdirTemp("", "nearcall"); err != nil {
			return "", nil, err
		}
		target = network + ":" + filepath.Join(dir, "s")
	}
	remove := func() error { return os.RemoveAll(dir) } // of nothing, if there is none
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), processEnv+"="+who+" "+target)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", nil, errors.Join(err, in.Close(), remove())
	}
	stop = func() error {
		kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = in.Close()
		return errors.Join(cmd.Wait(), remove())
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("the second process said %q and no more: %w", line, err), stop())
	}
	return strings.TrimSuffix(line, "\n"), stop, nil
}
