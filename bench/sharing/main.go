// Sharing measures how long small calls wait on a connection that also carries a large
// stream: 1,000 calls a second between two processes, alone and while a gigabyte is streamed
// in each direction, in one run. The same with the stream on a separate connection shows how
// much of the delay is due to the processors. A heap of a few megabytes, which the
// garbage collector traverses every few messages of the stream, shows the collector's part.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/bench/internal/child"
	"github.com/nearcall/nearcall/bench/internal/stack"
)

const (
	message = 256 << 10 // size of the stream's messages, in bytes
	every   = time.Millisecond
)

func main() {
	serve := flag.String("serve", "", "be the second process: serve `stack target live`")
	lives := flag.String("live", "64,0", "live heap of each process in `MiB`, with a comma between several")
	gigabytes := flag.Int("gb", 1, "length of the stream, in `GB`")
	rate := flag.Int("rate", 0, "of the stream, in `MB` a second; 0 for as fast as it goes")
	networks := flag.String("networks", "unix,tcp", "`networks`, with a comma between them")
	stacks := flag.String("stacks", "nearcall,grpc-go", "`stacks`, with a comma between them")
	flag.Parse()
	stream := load{messages: *gigabytes << 30 / message}
	if *rate > 0 {
		stream.interval = time.Second * message / time.Duration(*rate*1_000_000)
	}
	err := run(*serve, strings.Split(*lives, ","), strings.Split(*networks, ","), strings.Split(*stacks, ","), stream)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sharing:", err)
		os.Exit(1)
	}
	runtime.KeepAlive(live)
}

// A load describes the stream.
type load struct {
	messages int
	interval time.Duration // between messages; 0 for none
}

// pace calls send for each message when it is due, until it fails.
func (l load) pace(send func() error) error {
	due := time.Now()
	for range l.messages {
		time.Sleep(time.Until(due))
		if err := send(); err != nil {
			return err
		}
		due = due.Add(l.interval)
	}
	return nil
}

// live is ballast that enlarges the live heap.
var live []byte

func keepAlive(mib string) error {
	n, err := strconv.ParseUint(mib, 10, 16)
	if err != nil {
		return fmt.Errorf("-live takes numbers of MiB: %w", err)
	}
	live = nil
	runtime.GC()
	live = make([]byte, n<<20)
	return nil
}

func run(serve string, lives, networks, stacks []string, stream load) error {
	if serve != "" {
		return servePeer(strings.Fields(serve))
	}
	fmt.Printf("1,000 calls a second, alone and beside a stream of %d messages of 256 KiB\n\n", stream.messages)
	fmt.Println("| live heap | network | stack | beside | calls | p50 | p99 | p99 against alone | stream |")
	fmt.Println("|---|---|---|---|---:|---:|---:|---:|---:|")
	for _, mib := range lives {
		if err := keepAlive(mib); err != nil {
			return err
		}
		for _, network := range networks {
			for _, by := range stacks {
				if err := measure(mib, network, by, stream); err != nil {
					return fmt.Errorf("%s over %s: %w", by, network, err)
				}
			}
		}
	}
	return nil
}

// measure prints a line for the small calls alone, and one for each direction of the stream.
func measure(mib, network, by string, l load) error {
	conns, stop, err := connect(mib, network, by)
	if err != nil {
		return err
	}
	defer stop()
	client, other := testpb.NewTestServiceClient(conns[0]), testpb.NewTestServiceClient(conns[1])
	for _, c := range []testpb.TestServiceClient{client, other} { // warm
		if _, err := small(c, 200*time.Millisecond); err != nil {
			return err
		}
	}
	alone, err := small(client, 3*time.Second)
	if err != nil {
		return err
	}
	line := func(beside string, t times, stream string) {
		fmt.Printf("| %s MiB | %s | %s | %s | %d | %v | %v | %.2f | %s |\n", mib, network, by, beside, len(t), t.at(0.5), t.at(0.99), float64(t.at(0.99))/float64(alone.at(0.99)), stream)
	}
	line("nothing", alone, "")
	for _, d := range []struct {
		name string
		run  func(context.Context, testpb.TestServiceClient, load) error
		over testpb.TestServiceClient
	}{
		{"a stream to the client", download, client},
		{"the same on another connection", download, other},
		{"a stream to the server", upload, client},
		{"the same on another connection", upload, other},
	} {
		var failed error
		over := make(chan struct{})
		var both sync.WaitGroup
		begun := time.Now()
		both.Go(func() {
			defer close(over)
			failed = d.run(context.Background(), d.over, l)
		})
		t, err := until(client, over)
		both.Wait()
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		rate := float64(l.messages) * message / time.Since(begun).Seconds() / 1e9
		line(d.name, t, fmt.Sprintf("%.2f GB/s", rate))
	}
	return nil
}

// times are the times of calls, each measured from when it was sent.
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

// until starts a call every millisecond until over is closed, whether or not earlier ones
// have been answered.
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
		begun := time.Now() // not when it was due: a late wake-up of this goroutine is not the connection's delay
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

func download(ctx context.Context, client testpb.TestServiceClient, l load) error {
	s, err := client.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{ResponseParameters: []*testpb.ResponseParameters{{
		Size: int32(l.messages), IntervalUs: int32(l.interval.Microseconds()),
	}}})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		m, err := s.Recv()
		switch {
		case err == io.EOF && n == l.messages:
			return nil
		case err != nil:
			return fmt.Errorf("after %d messages: %w", n, err)
		case len(m.GetPayload().GetBody()) != message:
			return errors.New("a message of the wrong length")
		}
	}
}

func upload(ctx context.Context, client testpb.TestServiceClient, l load) error {
	s, err := client.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	m := &testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, message)}}
	_ = l.pace(func() error { return s.Send(m) }) // CloseAndRecv returns the reason
	out, err := s.CloseAndRecv()
	if err == nil && int(out.GetAggregatedPayloadSize()) != l.messages {
		err = fmt.Errorf("%d messages of %d arrived", out.GetAggregatedPayloadSize(), l.messages)
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
	p := in.GetResponseParameters()[0]
	l := load{int(p.GetSize()), time.Duration(p.GetIntervalUs()) * time.Microsecond}
	return l.pace(func() error { return to.Send(m) })
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
		return errors.New("-serve takes a stack, a target and a live heap")
	}
	if err := keepAlive(args[2]); err != nil {
		return err
	}
	at, stop, err := stack.Serve(args[0], args[1], service{})
	if err != nil {
		return err
	}
	fmt.Println(at)
	_, err = io.Copy(io.Discard, os.Stdin)
	stop()
	return err
}

// connect starts the second process, and connects to it twice.
func connect(mib, network, by string) (conns [2]grpc.ClientConnInterface, stop func(), err error) {
	dir, err := os.MkdirTemp("", "sharing")
	if err != nil {
		return conns, nil, err
	}
	undo := []func() error{func() error { return os.RemoveAll(dir) }}
	undoAll := func() {
		for _, f := range slices.Backward(undo) {
			_ = f()
		}
	}
	defer func() {
		if err != nil {
			undoAll()
		}
	}()
	target := network + ":127.0.0.1:0"
	if network == "unix" {
		target = network + ":" + filepath.Join(dir, "s")
	}
	second, err := child.Start(context.Background(), nil, "-serve", by+" "+target+" "+mib)
	if err != nil {
		return conns, nil, err
	}
	undo = append(undo, second.Stop)
	at, err := second.Hear()
	if err != nil {
		return conns, nil, fmt.Errorf("where it serves: %w", err)
	}
	for i := range conns {
		conn, err := stack.Dial(by, at)
		if err != nil {
			return conns, nil, err
		}
		conns[i], undo = conn, append(undo, conn.Close)
	}
	return conns, undoAll, nil
}
