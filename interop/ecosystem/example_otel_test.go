package ecosystem

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// An orderTaker accepts every order.
type orderTaker struct {
	orderspb.UnimplementedOrdersServer
}

func (orderTaker) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	return &orderspb.Order{Id: 1, Item: req.GetItem()}, nil
}

// OpenTelemetry's stats handlers work as with grpc-go: the client's span is the parent of
// the server's, also in process.
func Example_otelgrpc() {
	spans := tracetest.NewSpanRecorder() // in place of an exporter
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	opts := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tracer),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	}

	srv := nearcall.NewServer(nearcall.StatsHandler(otelgrpc.NewServerHandler(opts...)))
	orderspb.RegisterOrdersServer(srv, orderTaker{})
	conn := srv.Client(nearcall.WithStatsHandler(otelgrpc.NewClientHandler(opts...)))
	defer conn.Close()

	_, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	srv.GracefulStop() // waits until the server's span has ended

	parents := map[string]string{}
	for _, client := range spans.Ended() {
		for _, server := range spans.Ended() {
			if server.Parent().SpanID() == client.SpanContext().SpanID() {
				parents[server.SpanKind().String()] = client.SpanKind().String()
			}
		}
	}
	fmt.Println(len(spans.Ended()), "spans of", spans.Ended()[0].Name())
	fmt.Println("parent of the server's span:", parents["server"])
	// Output:
	// 2 spans of nearcall.examples.orders.Orders/Place
	// parent of the server's span: client
}
