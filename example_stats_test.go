package nearcall_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A callLog is a stats handler that reports each call when it has ended.
type callLog struct{ ended chan string }

type methodKey struct{}

func (*callLog) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, methodKey{}, info.FullMethodName)
}

func (l *callLog) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if end, ok := s.(*stats.End); ok {
		l.ended <- fmt.Sprint(ctx.Value(methodKey{}), ": ", status.Code(end.Error))
	}
}

func (*callLog) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*callLog) HandleConn(context.Context, stats.ConnStats)                       {}

// A stats handler written for grpc-go works unchanged. For OpenTelemetry pass
// otelgrpc.NewServerHandler() to StatsHandler, and otelgrpc.NewClientHandler() to
// WithStatsHandler: see the example in the module github.com/nearcall/nearcall/ecosystem.
func ExampleStatsHandler() {
	calls := &callLog{ended: make(chan string, 1)}
	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, orderspb.UnimplementedOrdersServer{})
	conn := srv.Client()
	defer conn.Close()

	_, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err == nil {
		log.Fatal("want Unimplemented from a server without the method Place, got OK")
	}
	fmt.Println(<-calls.ended)
	// Output: /nearcall.examples.orders.Orders/Place: Unimplemented
}
