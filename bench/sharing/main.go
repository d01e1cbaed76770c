// Sharing measures how long small calls wait on a connection that a large
// stream uses, too: 1,000 calls a second between two processes, alone and
// beside a gigabyte each way, in one run.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

const (
	message = 256 << 10 // of the stream, in bytes
	every   = time.Millisecond
)

func main() {
	serve := flag.String("serve", "", "be the second process: serve `stack network address`")
	gigabytes := flag.Int("gb", 1, "length of the stream, in `GB`")
	networks := flag.String("networks", "unix,tcp", "`networks`, with a comma between them")
	stacks := flag.String("stacks", "nearcall,grpc-go", "`stacks`, with a comma between them")
	flag.Parse()
	err := run(*serve, strings.Split(*networks, ","), strings.Split(*stacks, ","), *gigabytes<<30/message)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sharing:", err)
		os.Exit(1)
	}
}

func run(serve string, networks, stacks []string, messages int) error {
	if serve != "" {
		return servePeer(strings.Fields(serve))
	}
	fmt.Printf("1,000 calls a second, alone and beside a stream of %d messages of 256 KiB\n\n", messages)
	fmt.Println("| network | stack | beside | calls | p50 | p99 | p99 against alone | stream |")
	fmt.Println("|---|---|---|---:|---:|---:|---:|---:|")
	for _, network := range networks {
		for _, stack := range stacks {
			if err := measure(network, stack, messages); err != nil {
				return fmt.Errorf("%s over %s: %w", stack, network, err)
			}
		}
	}
	return nil
}

// measure prints a line for the small calls alone and beside each direction of
// the stream.
func measure(network, stack string, messages int) error {
	conn, stop, err := connect(network, stack)
	if err != nil {
		return err
	}
	defer stop()
	client := testpb.NewTestServiceClient(conn)
	if _, err := small(client, 200*time.Millisecond); err != nil { // warm
		return err
	}
	alone, err := small(client, 3*time.Second)
	if err != nil {
		return err
	}
	line := func(beside string, t times, stream string) {
		fmt.Printf("| %s | %s | %s | %d | %v | %v | %.2f | %s |\n", network, stack, beside, len(t), t.at(0.5), t.at(0.99), float64(t.at(0.99))/float64(alone.at(0.99)), stream)
	}
	line("nothing", alone, "")
	for _, d := range []struct {
		name string
		run  func(context.Context, testpb.TestServiceClient, int) error
	}{{"a stream to the client", download}, {"a stream to the server", upload}} {
		var t times
		var failed error
		over := make(chan struct{})
		var both sync.WaitGroup
		begun := time.Now()
		both.Go(func() {
			defer close(over)
			failed = d.run(context.Background(), client, messages)
		})
		t, err := until(client, over)
		both.Wait()
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		rate := float64(messages) * message / time.Since(begun).Seconds() / 1e9
		line(d.name, t, fmt.Sprintf("%.2f GB/s", rate))
	}
	return nil
}

// times are how long calls took, from when they were due.
type times []time.Duration

func (t times) at(part float64) time.Duration {
	slices.Sort(t)
	return t[int(part*float64(len(t)-1))].Round(100 * time.Nanosecond)
}

func small(client testpb.TestServiceClient, lasts time.Duration) (times, error) {
	over := make(chan struct{})
	time.AfterFunc(lasts, func() { close(over) })
	return until(client, over)
}

// until makes a call every millisecond until over is closed, whether or not
// those before it have been answered.
func until(client testpb.TestServiceClient, over <-chan struct{}) (times, error) {
	var mu sync.Mutex
	var all times
	var failed error
	var calls sync.WaitGroup
	in := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 20)}}
	for due := time.Now(); ; due = due.Add(every) {
		time.Sleep(time.Until(due))
		select {
		case <-over:
			calls.Wait()
			if len(all) == 0 {
				failed = errors.Join(failed, errors.New("the stream was over before a call was made"))
			}
			return all, failed
		default:
		}
		begun := time.Now() // that this goroutine was woken late is not the connection's fault
		calls.Go(func() {
			out, err := client.UnaryCall(context.Background(), in)
			took := time.Since(begun)
			if err == nil && len(out.GetPayload().GetBody()) != 20 {
				err = errors.New("a reply of the wrong length")
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took)
			failed = errors.Join(failed, err)
		})
	}
}

func download(ctx context.Context, client testpb.TestServiceClient, messages int) error {
	s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{Size: int32(messages)}}})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		m, err := s.Recv()
		switch {
		case err == io.EOF && n == messages:
			return nil
		case err != nil:
			return fmt.Errorf("after %d messages: %w", n, err)
		case len(m.GetPayload().GetBody()) != message:
			return errors.New("a message of the wrong length")
		}
	}
}

func upload(ctx context.Context, client testpb.TestServiceClient, messages int) error {
	s, err := client.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	m := &testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, message)}}
	for range messages {
		if err := s.Send(m); err != nil {
			break // CloseAndRecv has the reason
		}
	}
	out, err := s.CloseAndRecv()
	if err == nil && int(out.GetAggregatedPayloadSize()) != messages {
		err = fmt.Errorf("%d messages of %d arrived", out.GetAggregatedPayloadSize(), messages)
	}
	return err
}

type service struct {
	testpb.UnimplementedTestServiceServer
}

func (service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (service) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, to grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	m := &testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, message)}}
	for range in.GetResponseParameters()[0].GetSize() {
		if err := to.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (service) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for n := int32(0); ; n++ {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		} else if err != nil {
			return err
		}
	}
}

// servePeer serves until its standard input ends.
func servePeer(args []string) error {
	if len(args) != 3 {
		return errors.New("-serve takes a stack, a network and an address")
	}
	lis, err := net.Listen(args[1], args[2])
	if err != nil {
		return err
	}
	type server interface {
		grpc.ServiceRegistrar
		Serve(net.Listener) error
		Stop()
	}
	var srv server = grpc.NewServer()
	if args[0] == "nearcall" {
		srv = nearcall.NewServer()
	}
	testpb.RegisterTestServiceServer(srv, service{})
	go func() { _ = srv.Serve(lis) }()
	fmt.Println(lis.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	srv.Stop()
	return err
}

// connect starts the second process, and connects to it.
func connect(network, stack string) (_ grpc.ClientConnInterface, stop func(), err error) {
	dir, err := os.MkdirTemp("", "sharing")
	if err != nil {
		return nil, nil, err
	}
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(dir, "s")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, "-serve", stack+" "+network+" "+address)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	end := func() {
		_ = in.Close()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	at, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("the second process did not say where it serves: %w", err)
	}
	at = strings.TrimSpace(at)
	if stack == "nearcall" {
		conn, err := nearcall.NewClient(network + ":" + at)
		if err != nil {
			end()
			return nil, nil, err
		}
		return conn, func() { _ = conn.Close(); end() }, nil
	}
	scheme := map[string]string{"unix": "unix:", "tcp": "passthrough:///"}[network]
	conn, err := grpc.NewClient(scheme+at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		end()
		return nil, nil, err
	}
	return conn, func() { _ = conn.Close(); end() }, nil
}
