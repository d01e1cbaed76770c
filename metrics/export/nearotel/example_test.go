package nearotel_test

import (
	"context"
	"fmt"
	"log"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/export/nearotel"
)

// A shop accepts every order.
type shop struct {
	orderspb.UnimplementedOrdersServer
}

func (shop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem()}, nil
}

// A MeterProvider, here with a reader that is asked, shows the calls and sessions of a server.
func ExampleRegister() {
	calls := metrics.NewCalls()
	reader := sdk.NewManualReader()
	meter := sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("github.com/nearcall/nearcall")
	if _, err := nearotel.Register(meter, calls); err != nil {
		log.Fatal(err)
	}

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
	var shown metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &shown); err != nil {
		log.Fatal(err)
	}
	for _, m := range shown.ScopeMetrics[0].Metrics {
		for _, point := range m.Data.(metricdata.Sum[float64]).DataPoints {
			path, _ := point.Attributes.Value("nearcall.path")
			method, _ := point.Attributes.Value("grpc.method")
			switch m.Name {
			case "grpc.server.call.started":
				fmt.Println(m.Name, method.AsString(), point.Value)
			case "nearcall.sessions.opened":
				fmt.Println(m.Name, path.AsString(), point.Value)
			case "nearcall.client.reconnections":
				fmt.Println(m.Name, point.Value)
			}
		}
	}
	// Unordered output:
	// grpc.server.call.started nearcall.examples.orders.Orders/Place 3
	// nearcall.sessions.opened inproc 1
	// nearcall.sessions.opened inproc 1
	// nearcall.client.reconnections 0
}
