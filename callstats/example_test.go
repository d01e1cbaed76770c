package callstats_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/callstats"
	"github.com/nearcall/nearcall/callstats/callstatspb"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A server counts its calls, and a client reads the counts.
func Example() {
	calls := callstats.New()
	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop{})
	calls.Register(srv)
	conn := srv.Client()
	defer conn.Close()

	client := orderspb.NewOrdersClient(conn)
	for range 3 {
		if _, err := client.Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"}); err != nil {
			log.Fatal(err)
		}
	}
	reply, err := callstatspb.NewCallStatsClient(conn).Get(context.Background(), &callstatspb.GetRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range reply.GetMethods() {
		fmt.Println(m.GetName(), m.GetBegun())
	}
	// Output: /nearcall.examples.orders.Orders/Place 3
}
