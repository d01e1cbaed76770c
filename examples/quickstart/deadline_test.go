// This file shows how to test a service whose behaviour depends on time: in a bubble of
// testing/synctest, whose clock jumps ahead as soon as all goroutines are blocked. Make and close
// the server and the client inside the bubble.

package quickstart_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// slowShop is a service whose handlers take long.
type slowShop struct {
	orderspb.UnimplementedOrdersServer
	took chan time.Duration // how long each handler ran
}

// Await takes a minute, or until its caller is gone.
func (s *slowShop) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	start := time.Now()
	defer func() { s.took <- time.Since(start) }()
	select {
	case <-time.After(time.Minute):
		return &orderspb.Order{Id: req.GetId(), Shipped: true}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Place takes a minute and does not look at its context.
func (s *slowShop) Place(context.Context, *orderspb.PlaceRequest) (*orderspb.Order, error) {
	start := time.Now()
	defer func() { s.took <- time.Since(start) }()
	time.Sleep(time.Minute)
	return &orderspb.Order{}, nil
}

// List sends one order a second.
func (s *slowShop) List(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	for id := int64(1); ; id++ {
		select {
		case <-time.After(time.Second):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if err := stream.Send(&orderspb.Order{Id: id}); err != nil {
			return err
		}
	}
}

// inBubble runs f in a bubble, with a client of a slowShop.
func inBubble(t *testing.T, f func(t *testing.T, client orderspb.OrdersClient, shop *slowShop)) {
	synctest.Test(t, func(t *testing.T) {
		shop := &slowShop{took: make(chan time.Duration, 1)}
		srv := nearcall.NewServer()
		orderspb.RegisterOrdersServer(srv, shop)
		conn := srv.Client()

		f(t, orderspb.NewOrdersClient(conn), shop)

		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.GracefulStop() // waits for handlers: the bubble ends with none left
	})
}

func TestReplyComesAfterExactlyAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, client orderspb.OrdersClient, shop *slowShop) {
		start := time.Now()
		order, err := client.Await(t.Context(), &orderspb.AwaitRequest{Id: 7})
		if err != nil || !order.GetShipped() {
			t.Errorf("got %v, %v, want the order shipped", order, err)
		}
		wantAfter(t, start, time.Minute)
	})
}

func TestDeadlineEndsTheCallAndReachesTheHandler(t *testing.T) {
	inBubble(t, func(t *testing.T, client orderspb.OrdersClient, shop *slowShop) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()

		start := time.Now()
		_, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 7})
		wantCode(t, err, codes.DeadlineExceeded)
		wantAfter(t, start, 10*time.Second)
		if took := <-shop.took; took != 10*time.Second {
			t.Errorf("the handler ran for %v, want 10s: its context ends with the call's", took)
		}
	})
}

func TestCallerDoesNotWaitForAHandlerThatIgnoresItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, client orderspb.OrdersClient, shop *slowShop) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()

		start := time.Now()
		_, err := client.Place(ctx, &orderspb.PlaceRequest{})
		wantCode(t, err, codes.DeadlineExceeded)
		wantAfter(t, start, 10*time.Second)
		if took := <-shop.took; took != time.Minute {
			t.Errorf("the handler ran for %v, want its minute", took)
		}
	})
}

func TestStreamUntilItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, client orderspb.OrdersClient, shop *slowShop) {
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()

		start := time.Now()
		list, err := client.List(ctx, &orderspb.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for want := int64(1); want <= 3; want++ {
			order, err := list.Recv()
			if err != nil || order.GetId() != want {
				t.Fatalf("got %v, %v, want order %d", order, err, want)
			}
			wantAfter(t, start, time.Duration(want)*time.Second)
		}
		_, err = list.Recv()
		wantCode(t, err, codes.DeadlineExceeded)
		wantAfter(t, start, 3500*time.Millisecond)
	})
}

func wantAfter(t *testing.T, start time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("it took %v, want exactly %v", got, want)
	}
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v, want %v", err, want)
	}
}
