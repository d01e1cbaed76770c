package nearcall_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// Calls to a loop whose host is gone end, the first of which finds that out, and
// their server does not wait for them.
func TestCallsToALoopWhoseHostIsGone(t *testing.T) {
	gone := errors.New("the host is gone")
	l := loop.NewHosted(func(func()) error { return gone })
	srv := nearcall.NewServer()
	testpb.RegisterTestServiceServer(srv.On(l), &plain{t: t})
	conn := srv.Client()
	client := testpb.NewTestServiceClient(conn)
	for range 2 {
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			_, err := client.EmptyCall(ctx, &testpb.Empty{})
			wantCode(t, err, codes.Unavailable)
			s, err := client.FullDuplexCall(ctx)
			if err == nil {
				_, err = s.Recv()
			}
			wantCode(t, err, codes.Unavailable)
		}
	}
	stopped := make(chan error, 1)
	go func() {
		srv.GracefulStop()
		stopped <- nil
	}()
	_ = outcome(t, "GracefulStop", stopped)
	_ = conn.Close()
	if err := l.Close(t.Context()); !errors.Is(err, gone) {
		t.Errorf("Close: %v", err)
	}
}
