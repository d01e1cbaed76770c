package nearcall_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A depot answers Await when the order was shipped.
type depot struct {
	orderspb.UnimplementedOrdersServer
	waiting chan struct{} // receives a value when a call waits
	shipped chan struct{} // closed when the order was shipped
}

func (d *depot) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	d.waiting <- struct{}{}
	select {
	case <-d.shipped:
		return &orderspb.Order{Id: req.GetId(), Shipped: true}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// GracefulStop waits for the call that runs, and refuses those that come later. A program
// calls it when it receives SIGTERM, for example.
func ExampleServer_GracefulStop() {
	service := &depot{waiting: make(chan struct{}), shipped: make(chan struct{})}
	srv := nearcall.NewServer()
	orderspb.RegisterOrdersServer(srv, service)
	conn := srv.Client()
	defer conn.Close()
	client := orderspb.NewOrdersClient(conn)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		order, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 1})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("shipped:", order.GetShipped())
	}()
	<-service.waiting // the call runs

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		srv.GracefulStop()
	}()
	close(service.shipped)
	<-stopped
	<-replied

	_, err := client.Await(ctx, &orderspb.AwaitRequest{Id: 2})
	fmt.Println("after the stop:", status.Code(err))
	// Output:
	// shipped: true
	// after the stop: Unavailable
}
