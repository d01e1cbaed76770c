package main

import (
	"context"
	"errors"
	"net"

	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
)

// A Rival is a way from a client to a service.
type Rival struct {
	Name      string // also the benchmark's: keep it
	Connect   func(testpb.TestServiceServer) (Conn, error)
	UnaryOnly bool // it has no part in rows of streams
}

// A Conn is a rival that is connected. Close ends what Connect started, and
// returns when it has ended.
type Conn struct {
	Client testpb.TestServiceClient
	Close  func()
}

// Rivals take part in the tournament.
var Rivals = []Rival{
	{Name: "nearcall", Connect: overNearcall()},
	{Name: "nearcall-inline", Connect: overNearcall(nearcall.InlineHandlers()), UnaryOnly: true}, // streams do not differ
	{Name: "grpchan", Connect: overGrpchan},
	{Name: "bufconn", Connect: overBufconn},
	{Name: "tcp", Connect: overTCP},
	{Name: "direct", Connect: direct, UnaryOnly: true},
	{Name: "direct-clone", Connect: directClone, UnaryOnly: true},
}

// Baseline is the rival that the others are compared with.
const Baseline = "grpchan"

// Takes reports whether the rival has part in row.
func (r Rival) Takes(row Row) bool { return !r.UnaryOnly || row.Kind.Name == Unary.Name }

func overNearcall(opts ...nearcall.ServerOption) func(testpb.TestServiceServer) (Conn, error) {
	return func(s testpb.TestServiceServer) (Conn, error) {
		srv := nearcall.NewServer(opts...)
		testpb.RegisterTestServiceServer(srv, s)
		conn := srv.Client()
		return Conn{testpb.NewTestServiceClient(conn), func() {
			_ = conn.Close()
			srv.Stop()
		}}, nil
	}
}

func overGrpchan(s testpb.TestServiceServer) (Conn, error) {
	var channel inprocgrpc.Channel
	testpb.RegisterTestServiceServer(&channel, s)
	return Conn{testpb.NewTestServiceClient(&channel), func() {}}, nil
}

func overBufconn(s testpb.TestServiceServer) (Conn, error) {
	lis := bufconn.Listen(1 << 20)
	return overGRPC(s, lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
}

func overTCP(s testpb.TestServiceServer) (Conn, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Conn{}, err
	}
	return overGRPC(s, lis, grpc.WithNoProxy())
}

func overGRPC(s testpb.TestServiceServer, lis net.Listener, opts ...grpc.DialOption) (Conn, error) {
	conn, err := grpc.NewClient("passthrough:"+lis.Addr().String(),
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return Conn{}, errors.Join(err, lis.Close())
	}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	return Conn{testpb.NewTestServiceClient(conn), func() {
		_ = conn.Close()
		srv.Stop()
		<-ended
	}}, nil
}

// function is a client that calls the service's method, with nothing between:
// what a program does that is not split into services. Caller and callee share
// their messages.
type function struct {
	testpb.TestServiceClient // nil: there is only what follows
	service                  testpb.TestServiceServer
}

func direct(s testpb.TestServiceServer) (Conn, error) {
	return Conn{function{service: s}, func() {}}, nil
}

func (f function) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	return f.service.UnaryCall(ctx, in)
}

// clone is function with messages copied, so that neither side sees what the
// other does to them later: the least that can be promised of a call.
type clone struct{ function }

func directClone(s testpb.TestServiceServer) (Conn, error) {
	return Conn{clone{function{service: s}}, func() {}}, nil
}

func (c clone) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	out, err := c.service.UnaryCall(ctx, proto.CloneOf(in))
	if err != nil {
		return nil, err
	}
	return proto.CloneOf(out), nil
}
