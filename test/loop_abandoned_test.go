package test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/looptest"
)

// An abandonment is a server that takes one call at a time, and a client whose tasks are abandoned.
type abandonment struct {
	*looptest.BoundHost
	client  testpb.TestServiceClient
	running chan struct{} // a value for each handler that waits
	proceed chan struct{} // closed to end the handlers of unary calls without a deadline
	ended   chan struct{} // a value for each attempt that has ended
	quick   atomic.Bool   // handlers of unary calls return at once
	failing bool          // handlers of streams fail
}

// unary waits for the end of the call.
func (a *abandonment) unary(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if !a.quick.Load() {
		select {
		case a.running <- struct{}{}:
		case <-ctx.Done(): // of a task whose call was made before its loop learned that its host is gone
		}
		select {
		case <-a.proceed:
		case <-ctx.Done():
		}
	}
	return new(testpb.SimpleResponse), nil
}

// bidi waits for the end of the call.
func (a *abandonment) bidi(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	if a.failing {
		return status.Error(codes.Unavailable, "failing")
	}
	select {
	case a.running <- struct{}{}:
		<-s.Context().Done()
	case <-s.Context().Done():
	}
	return nil
}

func (*abandonment) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*abandonment) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*abandonment) HandleConn(context.Context, stats.ConnStats)                       {}
func (a *abandonment) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		a.ended <- struct{}{}
	}
}

// task starts a unary call in a task.
func (a *abandonment) task() {
	_ = a.Go(func(ctx context.Context) { _, _ = a.client.UnaryCall(ctx, new(testpb.SimpleRequest)) })
}

// abandonments make a task wait for something. Each returns when the task waits. When the host is gone, what it
// returns is called.
var abandonments = map[string]func(t *testing.T, a *abandonment) (after func()){
	"until the server takes another call": func(_ *testing.T, a *abandonment) func() {
		go func() { _, _ = a.client.UnaryCall(context.Background(), new(testpb.SimpleRequest)) }()
		<-a.running
		a.task()
		a.Settle()
		return func() { close(a.proceed) }
	},
	"for a reply": func(_ *testing.T, a *abandonment) func() {
		a.task()
		<-a.running
		a.Settle()
		return func() {}
	},
	"for a message": func(_ *testing.T, a *abandonment) func() {
		_ = a.Go(func(ctx context.Context) {
			if s, err := a.client.FullDuplexCall(ctx); err == nil {
				_, _ = s.Recv()
			}
		})
		<-a.running
		a.Settle()
		return func() {}
	},
	"to retry a stream that others use": func(t *testing.T, a *abandonment) func() {
		a.failing = true
		streams := make(chan grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse], 1)
		_ = a.Go(func(ctx context.Context) {
			if s, err := a.client.FullDuplexCall(ctx); err == nil {
				streams <- s
				_, _ = s.Recv()
			}
		})
		s := <-streams
		<-a.ended
		a.Settle()
		return func() {
			a.Tell() // otherwise only the end of the backoff would
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = s.Send(new(testpb.StreamingOutputCallRequest))
				_ = s.CloseSend()
				_, _ = s.Header()
				s.Trailer()
			}()
			outcome(t, "the end of the stream", done)
		}
	},
}

// A task that is abandoned keeps nothing for which others wait. That is so when the loop learns that
// its host is gone before the task is woken, and when it learns that by waking it.
func TestNobodyWaitsForATaskThatIsAbandoned(t *testing.T) {
	looptest.Abandon(t, func() {
		for what, begin := range abandonments {
			for _, network := range append(networks("tcp", "unix"), "") {
				for _, told := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/network=%s/told=%t", what, network, told), func(t *testing.T) { abandon(t, network, told, begin) })
				}
			}
		}
	})
}

// abandon runs one of abandonments. Then others must be able to make calls, and the server to stop.
func abandon(t *testing.T, network string, told bool, begin func(*testing.T, *abandonment) func()) {
	a := &abandonment{BoundHost: looptest.NewBoundHost(), running: make(chan struct{}), proceed: make(chan struct{}), ended: make(chan struct{}, 100)}
	srv := nearcall.NewServer(nearcall.MaxConcurrentStreams(1))
	testpb.RegisterTestServiceServer(srv, echo{unary: a.unary, bidi: a.bidi})
	opts := over(network, nearcall.WithStatsHandler(a), nearcall.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 2, "initialBackoff": "1000s", "maxBackoff": "1000s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`))
	var conn *nearcall.ClientConn
	if network == "" {
		conn = srv.Client(opts...)
	} else {
		lis := listen(t, targetFor(t, network))
		go func() { _ = srv.Serve(lis) }()
		var err error
		if conn, err = nearcall.NewClient(lis.Target(), opts...); err != nil {
			t.Fatal(err)
		}
	}
	a.client = testpb.NewTestServiceClient(conn)
	after := begin(t, a)
	a.Leave()
	if told {
		a.Tell()
	}
	after()
	a.Tell()
	done := make(chan error, 1)
	go func() {
		a.quick.Store(true)
		_, err := a.client.UnaryCall(context.Background(), new(testpb.SimpleRequest))
		done <- err
		srv.GracefulStop()
		done <- conn.Close()
	}()
	if err := outcome(t, "another call", done); err != nil {
		t.Errorf("another call: %v", err)
	}
	if err := outcome(t, "the end of the server", done); err != nil {
		t.Errorf("closing the connection: %v", err)
	}
}
