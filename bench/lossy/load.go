package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// The loads that small calls are measured beside. With fresh each call is the first of a new
// connection, beside nothing.
const (
	upload   = "up"
	download = "down"
	nothing  = "nothing"
	fresh    = "new"
)

var loads = []string{upload, download, nothing, fresh}

const (
	small = 100       // bytes that a call sends and receives
	bulk  = 256 << 10 // bytes of the stream's messages
)

// service is the server. It counts the bytes of uploads.
type service struct {
	testpb.UnimplementedTestServiceServer
	received atomic.Int64
}

// UnaryCall returns the payload.
func (*service) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

// StreamingInputCall takes an upload.
func (s *service) StreamingInputCall(from grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for {
		in, err := from.Recv()
		if err == io.EOF {
			return from.SendAndClose(new(testpb.StreamingInputCallResponse))
		}
		if err != nil {
			return err
		}
		s.received.Add(int64(len(in.GetPayload().GetBody())))
	}
}

// StreamingOutputCall sends until the client leaves.
func (*service) StreamingOutputCall(_ *testpb.StreamingOutputCallRequest, to grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	m := &testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, bulk)}}
	for {
		if err := to.Send(m); err != nil {
			return err
		}
	}
}

// A client makes small calls beside a stream, over one connection.
type client struct {
	dial     func() (conn, error)
	to       testpb.TestServiceClient
	received atomic.Int64 // bytes of a download

	end    context.CancelFunc // ends the stream
	stream sync.WaitGroup
}

// begin starts the load, and returns when it has been there for the given time. The load
// lasts until stop, or until ctx is done.
func (c *client) begin(ctx context.Context, load string, warm time.Duration) error {
	run := map[string]func(context.Context) error{upload: c.upload, download: c.download, nothing: c.nothing, fresh: c.nothing}[load]
	if run == nil {
		return fmt.Errorf("there is no load %q", load)
	}
	ctx, c.end = context.WithCancel(ctx)
	failed := make(chan error, 1)
	c.stream.Go(func() { failed <- run(ctx) })
	select {
	case err := <-failed:
		return fmt.Errorf("the stream has ended: %w", err)
	case <-time.After(warm):
		return nil
	}
}

// stop ends the load.
func (c *client) stop() {
	if c.end != nil {
		c.end()
	}
	c.stream.Wait()
}

func (c *client) upload(ctx context.Context) error {
	s, err := c.to.StreamingInputCall(ctx)
	if err != nil {
		return err
	}
	m := &testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, bulk)}}
	for {
		if err := s.Send(m); err != nil {
			_, err = s.CloseAndRecv() // has the reason
			return err
		}
	}
}

func (c *client) download(ctx context.Context) error {
	s, err := c.to.StreamingOutputCall(ctx, new(testpb.StreamingOutputCallRequest))
	if err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		c.received.Add(int64(len(m.GetPayload().GetBody())))
	}
}

func (*client) nothing(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A measurement is what a client saw of its calls.
type measurement struct {
	Calls    int
	P50, P99 time.Duration
}

// patience is how long a call may take. No call does unless its connection is lost.
const patience = time.Minute

// measure starts a call at each interval, whether or not earlier ones have been answered,
// and waits for all answers. It fails if a call does.
func (c *client) measure(ctx context.Context, load string, lasts, interval time.Duration) (measurement, error) {
	call := c.call
	if load == fresh {
		call = c.first
	}
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var calls sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, lasts+patience)
	defer cancel()
	begun := time.Now()
	for due := begun; due.Sub(begun) < lasts && ctx.Err() == nil; due = due.Add(interval) {
		time.Sleep(time.Until(due))
		calls.Go(func() {
			t, err := call(ctx)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, t)
			failed = cmp.Or(failed, err)
		})
	}
	calls.Wait()
	if err := cmp.Or(ctx.Err(), failed); err != nil {
		return measurement{}, err
	}
	return measurement{len(took), percentile(took, 50), percentile(took, 99)}, nil
}

// percentile sorts took, and returns the least that p percent do not exceed.
func percentile(took []time.Duration, p int) time.Duration {
	slices.Sort(took)
	return took[(len(took)*p+99)/100-1]
}

// call makes a small call, and returns how long it took. That does not count from when the
// call was due: a late wake-up is not the connection's delay.
func (c *client) call(ctx context.Context) (time.Duration, error) { return timed(ctx, c.to) }

// first makes a small call on a new connection, and returns how long both took.
func (c *client) first(ctx context.Context) (time.Duration, error) {
	to, err := c.dial() // which returns before there is a connection
	if err != nil {
		return 0, err
	}
	defer to.Close()
	return timed(ctx, testpb.NewTestServiceClient(to))
}

func timed(ctx context.Context, to testpb.TestServiceClient) (time.Duration, error) {
	sent := time.Now()
	out, err := to.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, small)}}, grpc.WaitForReady(true))
	if err == nil && len(out.GetPayload().GetBody()) != small {
		err = errors.New("a reply of the wrong length")
	}
	return time.Since(sent), err
}
