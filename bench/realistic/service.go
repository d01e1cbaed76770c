package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// A shop keeps orders.
type shop struct {
	testpb.UnimplementedTestServiceServer
	benchpb.UnimplementedRecordsServer

	mu     sync.Mutex
	orders map[string]*benchpb.Record
}

func newShop() *shop { return &shop{orders: make(map[string]*benchpb.Record)} }

func (s *shop) register(to grpc.ServiceRegistrar) {
	testpb.RegisterTestServiceServer(to, s)
	benchpb.RegisterRecordsServer(to, s)
}

// Echo stores an order and returns it.
func (s *shop) Echo(_ context.Context, order *benchpb.Record) (*benchpb.Record, error) {
	if order.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "an order needs an ID")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders[order.GetId()] = order
	return order, nil
}

// streamed is the number of messages per stream.
const streamed = 20

// StreamingOutputCall sends the payload back, streamed times.
func (s *shop) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, to grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range streamed {
		if err := to.Send(&testpb.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
	return nil
}

// A caller has the clients that calls are made with.
type caller struct {
	records benchpb.RecordsClient
	test    testpb.TestServiceClient
}

func newCaller(conn grpc.ClientConnInterface) caller {
	return caller{benchpb.NewRecordsClient(conn), testpb.NewTestServiceClient(conn)}
}

// A kind is a kind of call.
type kind struct {
	name string
	call func(context.Context, caller) error
}

var kinds = []kind{
	{"unary, a record", placeOrder},
	{fmt.Sprintf("server stream, %d × 100 B", streamed), watch},
}

const deadline = 5 * time.Second

func placeOrder(ctx context.Context, c caller) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	order := &benchpb.Record{
		Id: "ord-2041-7731", Title: "Spring order for the tea room", Created: 1767225600, Total: 214.4,
		Owner:  &benchpb.Person{Name: "Ines Sørensen", Mail: "ines@tearoom.example"},
		Lines:  []*benchpb.Line{{Item: "sencha, 500 g", Quantity: 4, Price: 18.5}, {Item: "gyokuro, 100 g", Quantity: 2, Price: 31}},
		Labels: map[string]string{"channel": "web", "region": "eu-north", "currency": "EUR"},
	}
	got, err := c.records.Echo(ctx, order)
	if err == nil && (got.GetId() != order.GetId() || len(got.GetLines()) != len(order.GetLines())) {
		err = fmt.Errorf("the reply is another order: %v", got)
	}
	return err
}

func watch(ctx context.Context, c caller) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	s, err := c.test.StreamingOutputCall(ctx, &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 100)}})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		switch _, err := s.Recv(); {
		case errors.Is(err, io.EOF) && n == streamed:
			return nil
		case err != nil:
			return fmt.Errorf("after %d messages: %w", n, err)
		}
	}
}
