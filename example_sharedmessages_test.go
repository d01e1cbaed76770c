package nearcall_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A ledger lists the same orders to every caller. It never modifies an order.
type ledger struct {
	orderspb.UnimplementedOrdersServer
	orders []*orderspb.Order
}

func (l *ledger) List(_ *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	for _, order := range l.orders {
		if err := stream.Send(order); err != nil {
			return err
		}
	}
	return nil
}

// If server and client both promise not to modify messages, these are passed on in
// process without a deep copy. To modify a received message, clone it with proto.Clone.
func ExampleSharedMessages() {
	srv := nearcall.NewServer(nearcall.SharedMessages())
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, &ledger{orders: []*orderspb.Order{{Item: "tea"}, {Item: "cup"}}})
	conn := srv.Client(nearcall.WithSharedMessages())
	defer conn.Close()

	stream, err := orderspb.NewOrdersClient(conn).List(context.Background(), &orderspb.ListRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for {
		order, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(order.GetItem()) // reads only
	}
	// Output:
	// tea
	// cup
}
