package metrics_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"log"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// A server counts its calls, and a client reads the counts.
func Example() {
	calls := metrics.NewCalls()
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
	reply, err := metricspb.NewMetricsClient(conn).Get(context.Background(), &metricspb.GetRequest{})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range reply.GetMethods() {
		fmt.Println(m.GetName(), m.GetBegun())
	}
	// Output: /nearcall.examples.orders.Orders/Place 3
}

// A Calls is an expvar.Var. The handler of package expvar shows it at /debug/vars.
func Example_expvar() {
	expvar.Publish("nearcall", metrics.NewCalls())

	var shown struct {
		Now int64 `json:"now"`
	}
	if err := json.Unmarshal([]byte(expvar.Get("nearcall").String()), &shown); err != nil {
		log.Fatal(err)
	}
	fmt.Println("shown:", shown.Now > 0)
	// Output: shown: true
}
