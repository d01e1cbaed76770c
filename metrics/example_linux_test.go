package metrics_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/metrics"
)

// The figures show whether connections of unix: targets became shared memory, and if not, why.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop{})
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "orders.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range metrics.Read().GetSessions() {
		if s.GetPath() == "shm" && s.GetOpen() > 0 {
			fmt.Println("shared memory, as", s.GetSide())
		}
	}
	for _, n := range metrics.Read().GetNotNearer() {
		if n.GetReason() == "failed" {
			log.Print(n.GetConnections(), " connections have not become shared memory, because of errors")
		}
	}
	// Output:
	// shared memory, as client
	// shared memory, as server
}
