package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A busyShop takes an order when it is asked for the third time.
type busyShop struct {
	orderspb.UnimplementedOrdersServer
	asked atomic.Int32
}

func (s *busyShop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if s.asked.Add(1) < 3 {
		return nil, status.Error(codes.Unavailable, "come back later")
	}
	return &orderspb.Order{Item: req.GetItem()}, nil
}

// A service config gives the calls of a service a timeout, and retries those that fail with
// Unavailable. It is gRPC's JSON.
func ExampleWithDefaultServiceConfig() {
	shop := &busyShop{}
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop)
	conn := srv.Client(nearcall.WithDefaultServiceConfig(`{
		"methodConfig": [{
			"name": [{"service": "nearcall.examples.orders.Orders"}],
			"timeout": "30s",
			"retryPolicy": {
				"maxAttempts": 4,
				"initialBackoff": "0.01s",
				"maxBackoff": "1s",
				"backoffMultiplier": 2,
				"retryableStatusCodes": ["UNAVAILABLE"]
			}
		}]
	}`))
	defer conn.Close()

	order, err := orderspb.NewOrdersClient(conn).Place(context.Background(), &orderspb.PlaceRequest{Item: "tea"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order.GetItem(), "after", shop.asked.Load(), "attempts")
	// Output: tea after 3 attempts
}

// Client interceptors have grpc-go's signature. The first one is the outermost. Their cc is a
// *grpc.ClientConn with the target, the state and the calls of the connection.
func ExampleWithChainUnaryInterceptor() {
	addToken := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoker(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer 1234"), method, req, reply, cc, opts...)
	}
	logCalls := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoker(ctx, method, req, reply, cc, opts...)
		md, _ := metadata.FromOutgoingContext(ctx)
		fmt.Println(method, md["authorization"], status.Code(err))
		return err
	}
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	conn := srv.Client(nearcall.WithChainUnaryInterceptor(addToken, logCalls))
	defer conn.Close()

	if _, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
		log.Fatal(err)
	}
	// Output: /grpc.health.v1.Health/Check [Bearer 1234] OK
}

// Interceptors of streams wrap the stream that the streamer returns.
func ExampleWithChainStreamInterceptor() {
	countMessages := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, cc, method, opts...)
		return &countedStream{ClientStream: stream}, err
	}
	srv := nearcall.NewServer()
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, &ledger{orders: []*orderspb.Order{{Item: "tea"}, {Item: "cup"}}})
	conn := srv.Client(nearcall.WithChainStreamInterceptor(countMessages))
	defer conn.Close()

	stream, err := orderspb.NewOrdersClient(conn).List(context.Background(), &orderspb.ListRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	fmt.Println(err)
	// Output:
	// received 2 messages
	// EOF
}

// A countedStream says how many messages it has received when it ends.
type countedStream struct {
	grpc.ClientStream
	received int
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		fmt.Println("received", s.received, "messages")
		return err
	}
	s.received++
	return nil
}
