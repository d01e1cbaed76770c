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

// A handler that sends to a task does not run that, which may wait for the handler in
// turn.
func TestACalleeDoesNotRunItsCaller(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		sent := make(chan struct{})
		client := inProcess(t, echo{bidi: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if err := loop.Sleep(s.Context(), 20*time.Millisecond); err != nil { // until the caller waits
				return err
			}
			err := s.Send(&testpb.StreamingOutputCallResponse{})
			close(sent)
			return err
		}}, newLoop(t, kind))
		done := make(chan error, 1)
		if err := newLoop(t, kind).Go(func(ctx context.Context) {
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			select { // which holds its loop
			case <-sent:
			case <-time.After(10 * time.Second):
				t.Error("the handler does not go on")
			}
			done <- err
		}); err != nil {
			t.Fatal(err)
		}
		if err := outcome(t, "the caller", done); err != nil {
			t.Error(err)
		}
	})
}
