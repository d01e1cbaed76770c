package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// A shop is the service that the tests look at.
type shop struct {
	orderspb.UnimplementedOrdersServer
	awaited chan struct{} // closed when Await begins; nil if no test wants it
}

const orders = "nearcall.examples.orders.Orders"

// Place takes an order of up to ten. The customer of the reply is what came as metadata.
func (shop) Place(ctx context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if req.GetQuantity() > 10 {
		st, err := status.New(codes.ResourceExhausted, "there is too little "+req.GetItem()).
			WithDetails(&orderspb.Shortage{Item: req.GetItem(), Wanted: req.GetQuantity(), Left: 10})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	in, _ := metadata.FromIncomingContext(ctx)
	if err := grpc.SetHeader(ctx, metadata.Pairs("shop-open", "yes", "shop-bin", "\x00\xff")); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("shop-closed", "no")); err != nil {
		return nil, err
	}
	customer := req.GetCustomer()
	for _, name := range []string{"who", "who-bin", ":authority", "user-agent"} {
		customer += fmt.Sprintf(" %q", in.Get(name))
	}
	return &orderspb.Order{Id: 1, Customer: strings.TrimSpace(customer), Item: req.GetItem(), Quantity: req.GetQuantity()}, nil
}

func (s shop) Await(ctx context.Context, _ *orderspb.AwaitRequest) (*orderspb.Order, error) {
	if s.awaited != nil {
		close(s.awaited)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (shop) List(req *orderspb.ListRequest, s grpc.ServerStreamingServer[orderspb.Order]) error {
	for i := range int64(3) {
		if err := s.Send(&orderspb.Order{Id: i, Customer: req.GetCustomer()}); err != nil {
			return err
		}
	}
	return nil
}

func (shop) Import(s grpc.ClientStreamingServer[orderspb.PlaceRequest, orderspb.ImportReply]) error {
	reply := new(orderspb.ImportReply)
	for {
		_, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(reply)
		}
		if err != nil {
			return err
		}
		reply.Placed++
	}
}

// Haggle accepts from 100 on, and then ends.
func (shop) Haggle(s grpc.BidiStreamingServer[orderspb.Offer, orderspb.Answer]) error {
	for {
		offer, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&orderspb.Answer{Accepted: offer.GetCents() >= 100, AskCents: 100}); err != nil {
			return err
		}
		if offer.GetCents() >= 100 {
			return nil
		}
	}
}

type server interface {
	reflection.GRPCServer
	Serve(net.Listener) error
	Stop()
}

// serve serves until the test ends.
func serve(t *testing.T, srv server, lis net.Listener) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("the server ended with %v", err)
		}
	})
}

func withShop(srv server) {
	orderspb.RegisterOrdersServer(srv, shop{})
	reflection.Register(srv)
}

// serveNear serves on a target of nearcall and returns the target that reaches it.
func serveNear(t *testing.T, target string, register func(server), opts ...nearcall.ServerOption) string {
	t.Helper()
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	srv := nearcall.NewServer(opts...)
	register(srv)
	serve(t, srv, lis)
	return lis.Target()
}

// serveFar serves by grpc-go and returns HOST:PORT.
func serveFar(t *testing.T, register func(server), opts ...grpc.ServerOption) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(opts...)
	register(srv)
	serve(t, srv, lis)
	return lis.Addr().String()
}

// onEveryPath runs a test with a server on each path that the system has.
func onEveryPath(t *testing.T, register func(server), test func(t *testing.T, target string)) {
	t.Run("tcp", func(t *testing.T) { test(t, serveNear(t, "tcp:127.0.0.1:0", register)) })
	t.Run("ws", func(t *testing.T) { test(t, serveNear(t, "ws://127.0.0.1:0/calls", register)) })
	t.Run("grpc", func(t *testing.T) { test(t, serveFar(t, register)) })
	if needs.HasUnixSockets() {
		t.Run("unix", func(t *testing.T) { test(t, serveNear(t, "unix:"+filepath.Join(t.TempDir(), "s"), register)) })
	}
	if runtime.GOOS == "linux" {
		t.Run("shm", func(t *testing.T) { test(t, serveNear(t, "shm:"+filepath.Join(t.TempDir(), "s"), register)) })
	}
}

// onOne returns the target of a server with a shop.
func onOne(t *testing.T) string {
	t.Helper()
	return serveNear(t, "tcp:127.0.0.1:0", withShop)
}
