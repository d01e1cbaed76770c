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
	"runtime/pprof"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// processEnv is the environment variable that makes the command serve, as the second process
// of a tour. Its value is the name of the stack and the target to listen on.
const processEnv = "NEARCALL_TOUR_PROCESS"

const (
	byNearcall = "nearcall"
	byGRPC     = "grpc-go"
)

// beTheProcess serves as the second process if processEnv is set, and reports whether it was.
func beTheProcess() bool {
	value, ok := os.LookupEnv(processEnv)
	if !ok {
		return false
	}
	signal.Ignore(os.Interrupt) // Ctrl-C ends the tour, which closes the input
	who, target, _ := strings.Cut(value, " ")
	err := serveTarget(who, target, os.Stdin, os.Stdout)
	_ = os.Stdout.Close() // tells the tour that nothing is left to do but to exit
	if err != nil {
		fmt.Fprintf(os.Stderr, "nearcall tour: the second process: %v\n", err)
		os.Exit(exitFailed)
	}
	return true
}

// serveTarget serves until the reader in ends. It writes the target that clients dial to the
// writer out.
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
	stuck := time.AfterFunc(patience/2, func() { reportStuck(os.Stderr) })
	srv.Stop()
	stuck.Stop()
	if served := <-ended; !errors.Is(served, grpc.ErrServerStopped) { // Stop may come before Serve
		err = errors.Join(err, served)
	}
	return err
}

// reportStuck writes what the goroutines wait for in a server that does not stop. The tour kills
// such a process after the time patience; without the report, the cause would stay unknown.
func reportStuck(out io.Writer) {
	fmt.Fprintf(out, "nearcall tour: the second process did not stop within %v:\n", patience/2)
	_ = pprof.Lookup("goroutine").WriteTo(out, 2)
}

// overProcess returns the open function of a path to a second process, which serves its own
// copy of the service.
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

// dialTarget returns a connection to a second process. It does not upgrade a unix socket to
// shared memory, which is a separate path.
func dialTarget(who, target string) (clientConn, error) {
	if who == byNearcall {
		return nearcall.NewClient(target, nearcall.WithDisableSharedMemory())
	}
	if address, ok := strings.CutPrefix(target, "tcp:"); ok {
		target = "passthrough:" + address
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
}

// patience is how long a process may take to end before it is killed.
const patience = 10 * time.Second

// startProcess runs this command as a second process, and returns the target that it serves.
// stop ends the process and waits for it.
func startProcess(who, network string) (target string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	dir := ""
	switch network {
	case "tcp":
		target = "tcp:127.0.0.1:0"
	case "ws":
		target = "ws://127.0.0.1:0/calls"
	default:
		if dir, err = os.MkdirTemp("", "nearcall"); err != nil {
			return "", nil, err
		}
		target = network + ":" + filepath.Join(dir, "s")
	}
	remove := func() error { return os.RemoveAll(dir) } // does nothing if dir is ""
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
	said := bufio.NewReader(out)
	stop = func() error {
		kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = in.Close()
		_, _ = io.Copy(io.Discard, said) // until it has stopped serving
		served := kill.Stop()
		kill.Reset(patience / 5)
		err := cmd.Wait()
		switch ended := kill.Stop(); {
		case !served:
			err = fmt.Errorf("the second process, %s over %s, did not end within %v and was killed: %w", who, network, patience, err)
		case !ended: // under Wine, a process can hang at its exit on a busy machine
			err = nil
		}
		return errors.Join(err, remove())
	}
	line, err := said.ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("the second process said %q and no more: %w", line, err), stop())
	}
	return strings.TrimSuffix(line, "\n"), stop, nil
}
