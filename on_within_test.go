package nearcall_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/looptest"
	"github.com/nearcall/nearcall/loop"
)

// A task whose context ends as it begins to wait wakes others by that, such as one that
// receives from the same stream.
func TestATaskThatWaitsWithAContextThatHasEnded(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l := newLoop(t, kind)
		client := inProcess(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			_ = l.Go(func(context.Context) { _, _ = s.Recv() })
			_ = loop.Sleep(s.Context(), 0) // it receives now
			_, err := loop.Await(s.Context(), func(func(int, error)) { time.Sleep(30 * time.Millisecond) })
			return err
		}}, l)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			done <- err
		}()
		if err := outcome(t, "the stream", done); err == nil {
			t.Error("it ends without an error")
		}
	})
}

// A call that runs within a task is among those that Close ends.
func TestCloseEndsACallThatRunsWithinATask(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		l, end := kind.New()
		in, out := make(chan struct{}), make(chan error, 1)
		client := inProcess(t, echo{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			close(in)
			err := loop.Sleep(ctx, time.Hour)
			out <- err
			return nil, err
		}}, l)
		if err := l.Go(func(context.Context) { _, _ = client.UnaryCall(context.Background(), &testpb.SimpleRequest{}) }); err != nil {
			t.Fatal(err)
		}
		<-in
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := l.Close(ctx); err != context.DeadlineExceeded {
			t.Errorf("Close: %v", err)
		}
		if err := outcome(t, "the call", out); err != context.Canceled {
			t.Errorf("its context ends with %v", err)
		}
		_ = end(t.Context())
	})
}
