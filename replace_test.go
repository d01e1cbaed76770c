package nearcall_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// A server that is replaced by another, gracefully, loses no call of a client
// that waits until it is ready: what the old one has not seen the new one gets.
func TestReplacingAServerLosesNoCall(t *testing.T) {
	for _, network := range networks("unix") {
		t.Run(network, func(t *testing.T) { testReplacing(t, network) })
	}
}

func testReplacing(t *testing.T, network string) {
	target := targetFor(t, network)
	up := func() (srv *nearcall.Server, served chan error) {
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		srv, served = serve(t, echo{}), make(chan error, 1)
		go func() { served <- srv.Serve(lis) }()
		return srv, served
	}
	srv, served := up()
	conn, err := nearcall.NewClient(target, over(network,
		nearcall.WithDefaultCallOptions(grpc.WaitForReady(true)),
		nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.2, MaxDelay: 5 * time.Millisecond}}))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := testpb.NewTestServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	over := make(chan struct{})
	made := make(chan struct{}) // takes one for each call that ended while somebody listened
	var callers sync.WaitGroup
	calls := func(call func() error) {
		callers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := call(); err != nil {
					t.Error(err)
					return
				}
				select {
				case made <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 8 {
		calls(func() error {
			_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(100)})
			return err
		})
		calls(func() error {
			s, err := client.FullDuplexCall(ctx)
			if err != nil {
				return err
			}
			for range 3 {
				if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: payload(100)}); err != nil {
					_, err = s.Recv()
					return err
				}
			}
			_ = s.CloseSend()
			n := 0
			for ; err == nil; n++ {
				_, err = s.Recv()
			}
			if n-1 != 3 {
				t.Errorf("%d messages of 3", n-1)
			}
			if err == io.EOF {
				err = nil
			}
			return err
		})
	}
	for range 30 {
		for range 10 {
			select {
			case <-made:
			case <-ctx.Done():
				t.Fatal("no more calls are made")
			}
		}
		srv.GracefulStop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		srv, served = up()
	}
	close(over)
	callers.Wait()
}
