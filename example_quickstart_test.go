package nearcall_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A teaShop implements the Orders service, as it would for grpc-go.
type teaShop struct {
	orderspb.UnimplementedOrdersServer
}

func (teaShop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if req.GetItem() != "tea" {
		return nil, status.Errorf(codes.NotFound, "no %s here", req.GetItem())
	}
	return &orderspb.Order{Id: 1, Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

// A server and its client in one process. The generated code is the same as for grpc-go;
// only the constructors are nearcall's.
func Example() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, teaShop{})

	conn := srv.Client()
	defer conn.Close()
	client := orderspb.NewOrdersClient(conn)

	ctx := context.Background()
	order, err := client.Place(ctx, &orderspb.PlaceRequest{Item: "tea", Quantity: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("order %d: %d %s\n", order.GetId(), order.GetQuantity(), order.GetItem())

	_, err = client.Place(ctx, &orderspb.PlaceRequest{Item: "coffee", Quantity: 1})
	fmt.Println(err)
	// Output:
	// order 1: 2 tea
	// rpc error: code = NotFound desc = no coffee here
}
