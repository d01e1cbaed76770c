package main

import (
	"bufio"
	"bytes"
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
// writer out. If it does not stop, it writes the stacks of its goroutines.
func serveTarget(who, target string, in io.Reader, out io.Writer) error {
	target, stop, err := host(who, target, service{})
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(out, target); err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	defer time.AfterFunc(patience/2, func() { _ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2) }).Stop()
	return errors.Join(err, stop())
}

type hosting interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	Stop()
}

// host serves s by a stack, and returns the target that clients dial.
func host(who, target string, s testpb.TestServiceServer) (reached string, stop func() error, err error) {
	if who == byNearcall {
		lis, err := nearcall.Listen(target)
		if err != nil {
			return "", nil, err
		}
		return lis.Target(), hostOn(nearcall.NewServer(), lis, s), nil
	}
	network, address, _ := strings.Cut(target, ":")
	lis, err := net.Listen(network, address)
	if err != nil {
		return "", nil, err
	}
	return network + ":" + lis.Addr().String(), hostOn(grpc.NewServer(), lis, s), nil
}

// hostOn serves s behind a listener until stop is called.
func hostOn(srv hosting, lis net.Listener, s testpb.TestServiceServer) (stop func() error) {
	testpb.RegisterTestServiceServer(srv, s)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	return func() error {
		srv.Stop()
		if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) { // Stop may come before Serve
			return err
		}
		return nil
	}
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
	dir, err := os.MkdirTemp("", "nearcall")
	if err != nil {
		return "", nil, err
	}
	target = network + ":" + filepath.Join(dir, "s")
	if address := map[string]string{"tcp": "tcp:127.0.0.1:0", "ws": "ws://127.0.0.1:0/calls"}[network]; address != "" {
		target = address
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), processEnv+"="+who+" "+target)
	cmd.Stderr, cmd.WaitDelay = os.Stderr, patience
	in, err := cmd.StdinPipe()
	cmd.Cancel = func() error {
		_ = in.Close()
		return os.ErrProcessDone // or Wait would return the context's error
	}
	var out io.Reader
	if err == nil {
		out, err = cmd.StdoutPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	said := bufio.NewReader(out)
	stop = func() error {
		begun := time.Now()
		cancel()
		_, _ = io.Copy(io.Discard, said) // until it has stopped serving
		served := time.Since(begun) < patience
		if err = cmd.Wait(); served && time.Since(begun) >= patience { // under Wine, a process can hang at its exit on a busy machine
			err = nil
		}
		return errors.Join(err, os.RemoveAll(dir))
	}
	line, err := said.ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("the second process said %q and no more: %w", line, err), stop())
	}
	return strings.TrimSuffix(line, "\n"), stop, nil
}

const (
	size     = 32  // size of a payload, in bytes
	messages = 100 // messages per stream
)

// service is the service that the tour calls: that of grpc-go's own tests. It does not depend
// on the path.
type service struct {
	testpb.UnimplementedTestServiceServer
}

// answer returns a new payload, as most handlers would make one.
func answer(to *testpb.Payload) *testpb.Payload {
	return &testpb.Payload{Body: bytes.Clone(to.GetBody())}
}

func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: answer(in.Payload)}, nil
}

func (service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range messages {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: answer(in.Payload)}); err != nil {
			return err
		}
	}
	return nil
}

func (service) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	for {
		in, err := s.Recv()
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallResponse{Payload: answer(in.Payload)})
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// A call is a kind of call that the tour measures. open returns a function that makes one call, and
// fails if the answer is wrong.
type call struct {
	name string
	open func(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error)
}

var calls = []call{
	{fmt.Sprintf("unary, %d B", size), unary},
	{fmt.Sprintf("server stream, %d × %d B", messages, size), serverStream},
	{fmt.Sprintf("bidi echo, %d B", size), bidiEcho},
}

func payload() *testpb.Payload { return &testpb.Payload{Body: bytes.Repeat([]byte{'n'}, size)} }

// check returns err, or an error if got is not want.
func check(err error, what string, got, want int) error {
	if err == nil && got != want {
		return fmt.Errorf("wrong answer: %d %s, want %d", got, what, want)
	}
	return err
}

func unary(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	in := &testpb.SimpleRequest{Payload: payload()}
	return func() error {
		out, err := client.UnaryCall(ctx, in)
		return check(err, "bytes in the reply", len(out.GetPayload().GetBody()), size)
	}, nil
}

func serverStream(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	in := &testpb.StreamingOutputCallRequest{Payload: payload()}
	return func() error {
		s, err := client.StreamingOutputCall(ctx, in)
		n := -1
		for ; err == nil; n++ {
			var out *testpb.StreamingOutputCallResponse
			out, err = s.Recv()
			err = check(err, "bytes in a message", len(out.GetPayload().GetBody()), size)
		}
		if err == io.EOF {
			err = nil
		}
		return check(err, "messages", n, messages)
	}, nil
}

// bidiEcho keeps one stream open. A call is one message there and back.
func bidiEcho(ctx context.Context, client testpb.TestServiceClient) (do func() error, err error) {
	s, err := client.FullDuplexCall(ctx)
	in := &testpb.StreamingOutputCallRequest{Payload: payload()}
	return func() error {
		if err := s.Send(in); err != nil {
			return err
		}
		out, err := s.Recv()
		return check(err, "bytes in the echo", len(out.GetPayload().GetBody()), size)
	}, err
}
