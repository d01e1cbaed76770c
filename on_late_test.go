package nearcall_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall/internal/looptest"
)

// A stream whose turn came too late has its handler not run, either. That of a unary
// call would fail as it takes its request; a stream's would begin.
func TestAStreamThatIsLateForItsTurn(t *testing.T) {
	eachLoop(t, func(t *testing.T, kind looptest.Kind) {
		ran := false
		l := newLoop(t, kind)
		client := inProcess(t, echo{bidi: func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			ran = true
			return nil
		}}, l)
		release := make(chan struct{})
		if err := l.Post(func() { <-release }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		s, err := client.FullDuplexCall(ctx)
		if err == nil {
			_, err = s.Recv()
		}
		wantCode(t, err, codes.DeadlineExceeded)
		close(release)
		over := make(chan error, 1)
		if err := l.Post(func() {
			if ran {
				t.Error("the handler has run")
			}
			over <- nil
		}); err != nil {
			t.Fatal(err)
		}
		_ = outcome(t, "the loop's next task", over)
	})
}
