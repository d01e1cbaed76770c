package test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall"
)

// TestTheTapHandleIsAskedBeforeACallWaits: a call that it refuses takes no place among those that
// MaxConcurrentStreams allows. A server has one handle.
func TestTheTapHandleIsAskedBeforeACallWaits(t *testing.T) {
	hold(t)
	var asked atomic.Int64
	option := nearcall.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		asked.Add(1)
		if len(info.Header["refuse"]) > 0 {
			return nil, status.Error(codes.ResourceExhausted, "too many calls")
		}
		return ctx, nil
	})
	client, _ := connect(t, serve(t, echo{}, nearcall.MaxConcurrentStreams(1), option))
	for range 2 {
		for ctx, want := range map[context.Context]codes.Code{t.Context(): codes.OK, metadata.AppendToOutgoingContext(t.Context(), "refuse", "yes"): codes.ResourceExhausted} {
			wantCode(t, <-invoke(ctx, client), want)
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_ = s.CloseSend()
				if _, err = s.Recv(); err == io.EOF {
					err = nil
				}
			}
			wantCode(t, err, want)
		}
	}
	if n := asked.Load(); n != 8 {
		t.Errorf("asked %d times, want 8", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second tap handle is accepted")
		}
	}()
	nearcall.NewServer(option, option)
}
