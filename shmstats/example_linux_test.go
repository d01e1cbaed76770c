package shmstats_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/shmstats"
)

// A kiosk accepts every order.
type kiosk struct {
	orderspb.UnimplementedOrdersServer
}

func (kiosk) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem()}, nil
}

// The statistics show whether connections of unix: targets became shared memory, and if
// not, why. A program exports them as metrics, or logs Fallback.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, kiosk{})
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "orders.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	before := shmstats.Read()
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	after := shmstats.Read()
	if after.Fallbacks > before.Fallbacks {
		log.Fatal("the connection stays a socket: ", after.Fallback)
	}
	fmt.Println("shared memory:", after.Upgrades > before.Upgrades)
	fmt.Println("in use:", after.Connections > 0 && after.Bytes > 0)
	// Output:
	// shared memory: true
	// in use: true
}
