// Package shop is the part of the program that the packages before and after share: a service with
// state, and interceptors. It uses what a gRPC program of some size uses: unary calls and streams,
// interceptors on both sides, metadata, headers and trailers, deadlines, errors with details.
package shop

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// A Shop implements the Orders service.
type Shop struct {
	orderspb.UnimplementedOrdersServer

	mu      sync.Mutex
	stock   map[string]int32
	orders  []*orderspb.Order       // the order with number n is orders[n-1]
	shipped map[int64]chan struct{} // closed when the order is shipped
}

// New returns a shop with the given stock.
func New(stock map[string]int32) *Shop {
	s := &Shop{stock: make(map[string]int32), shipped: make(map[int64]chan struct{})}
	for item, n := range stock {
		s.stock[item] = n
	}
	return s
}

// Place implements the Orders service.
func (s *Shop) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	order, err := s.place(req)
	if err != nil {
		return nil, err
	}
	if err := grpc.SetHeader(ctx, metadata.Pairs("order-id", strconv.FormatInt(order.GetId(), 10))); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("left-in-stock", strconv.Itoa(int(s.left(req.GetItem()))))); err != nil {
		return nil, err
	}
	return order, nil
}

// Await implements the Orders service.
func (s *Shop) Await(ctx context.Context, req *orderspb.AwaitRequest) (*orderspb.Order, error) {
	s.mu.Lock()
	shipped, ok := s.shipped[req.GetId()]
	s.mu.Unlock()
	if !ok {
		return nil, status.Errorf(codes.NotFound, "there is no order %d", req.GetId())
	}
	select {
	case <-shipped:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return clone(s.orders[req.GetId()-1]), nil
}

// List implements the Orders service.
func (s *Shop) List(req *orderspb.ListRequest, stream grpc.ServerStreamingServer[orderspb.Order]) error {
	orders := s.of(req.GetCustomer())
	stream.SetTrailer(metadata.Pairs("orders", strconv.Itoa(len(orders))))
	for _, order := range orders {
		if err := stream.Send(order); err != nil {
			return err
		}
	}
	return nil
}

// Import implements the Orders service.
func (s *Shop) Import(stream grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error {
	reply := &orderspb.ImportReply{}
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(reply)
		}
		if err != nil {
			return err
		}
		if _, err := s.place(req); err != nil {
			reply.Refused++
			continue
		}
		reply.Placed++
	}
}

// Haggle implements the Orders service. It asks for the middle between the
// offer and its last price, and accepts an offer that comes close.
func (s *Shop) Haggle(stream grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	ask := int32(1000)
	for {
		offer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Aborted, "the customer left")
		}
		if err != nil {
			return err
		}
		ask = (ask + offer.GetCents()) / 2
		accepted := ask-offer.GetCents() < 50
		if err := stream.Send(&orderspb.Answer{Accepted: accepted, AskCents: ask}); err != nil {
			return err
		}
		if accepted {
			return nil
		}
	}
}

// Ship ships an order, which ends the calls of Await for it.
func (s *Shop) Ship(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if order := s.orders[id-1]; !order.GetShipped() {
		order.Shipped = true
		close(s.shipped[id])
	}
}

func (s *Shop) place(req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if req.GetQuantity() <= 0 {
		return nil, status.Error(codes.InvalidArgument, "quantity must be positive")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.stock[req.GetItem()]
	if left < req.GetQuantity() {
		st := status.Newf(codes.ResourceExhausted, "too few of %s", req.GetItem())
		st, err := st.WithDetails(&orderspb.Shortage{Item: req.GetItem(), Wanted: req.GetQuantity(), Left: left})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	s.stock[req.GetItem()] = left - req.GetQuantity()
	order := &orderspb.Order{
		Id:       int64(len(s.orders) + 1),
		Customer: req.GetCustomer(),
		Item:     req.GetItem(),
		Quantity: req.GetQuantity(),
	}
	s.orders = append(s.orders, order)
	s.shipped[order.GetId()] = make(chan struct{})
	return clone(order), nil
}

func (s *Shop) left(item string) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stock[item]
}

func (s *Shop) of(customer string) []*orderspb.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	var orders []*orderspb.Order
	for _, order := range s.orders {
		if order.GetCustomer() == customer {
			orders = append(orders, clone(order))
		}
	}
	return orders
}

// clone returns a copy that may be used without the lock.
func clone(o *orderspb.Order) *orderspb.Order {
	return &orderspb.Order{
		Id:       o.GetId(),
		Customer: o.GetCustomer(),
		Item:     o.GetItem(),
		Quantity: o.GetQuantity(),
		Shipped:  o.GetShipped(),
	}
}
