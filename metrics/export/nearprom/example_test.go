package nearprom_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/export/nearprom"
)

// A shop accepts every order.
type shop struct {
	orderspb.UnimplementedOrdersServer
}

func (shop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem()}, nil
}

// A registry shows the calls and sessions of a server, and a handler of package promhttp serves it.
func ExampleNewCollector() {
	calls := metrics.NewCalls()
	registry := prometheus.NewRegistry()
	registry.MustRegister(nearprom.NewCollector(calls))

	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop{})
	calls.Register(srv)
	conn := srv.Client()
	defer conn.Close()
	for range 3 {
		if _, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"}); err != nil {
			log.Fatal(err)
		}
	}
	shown, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range shown {
		for _, m := range family.GetMetric() {
			switch family.GetName() {
			case "grpc_server_call_started_total":
				fmt.Println(family.GetName(), m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
			case "nearcall_sessions":
				fmt.Println(family.GetName(), m.GetLabel()[1].GetValue(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
			}
		}
	}
	// Output:
	// grpc_server_call_started_total nearcall.examples.orders.Orders/Place 3
	// nearcall_sessions client inproc 1
	// nearcall_sessions server inproc 1
}
