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
	"github.com/nearcall/nearcall/bench/internal/benchpb"
)

// A Rival is a way from clients to services.
type Rival struct {
	Name      string                       // also the benchmark's: keep it
	Connect   func(Services) (Conn, error) // nil where Dial is not
	Dial      func(row Row) (Conn, error)  // to a process that has the services
	UnaryOnly bool                         // it has no part in rows of streams
	Without   []Absence                    // rows that it has no part in either
	Note      string                       // that its figures need
	Limit     bool                         // it is no RPC, and shows what one could take at best
}

// An Absence is why a rival has no part in some rows.
type Absence struct {
	Of  func(Row) bool
	Why string
}

// absence returns why the rival has no part in row, if that was told.
func (r Rival) absence(row Row) (why string, ok bool) {
	for _, a := range r.Without {
		if a.Of(row) {
			return a.Why, true
		}
	}
	return "", false
}

// A Conn is a rival that is connected. Close ends what Connect started, and
// returns when it has ended.
type Conn struct {
	Test    testpb.TestServiceClient
	Records benchpb.RecordsClient
	Close   func()

	// Peer is the process that has the services; nil where that is this one.
	// Whoever closes the connection stops it then.
	Peer *peer
}

// stubs returns the generated clients over conn.
func stubs(conn grpc.ClientConnInterface, end func()) Conn {
	return Conn{Test: testpb.NewTestServiceClient(conn), Records: benchpb.NewRecordsClient(conn), Close: end}
}

// inProcessRivals take part where all is in one process.
var inProcessRivals = []Rival{
	{Name: "nearcall", Connect: overNearcall()},
	{Name: "nearcall-inline", Connect: overNearcall(nearcall.InlineHandlers()), UnaryOnly: true}, // streams do not differ
	{Name: "nearcall-shared", Connect: shared},
	{Name: "grpchan", Connect: overGrpchan},
	{Name: "bufconn", Connect: overBufconn},
	{Name: "tcp", Connect: overTCP},
	{Name: "direct", Connect: direct, UnaryOnly: true, Limit: true},
	{Name: "direct-clone", Connect: directClone, UnaryOnly: true, Limit: true},
}

// Takes reports whether the rival has part in row.
func (r Rival) Takes(row Row) bool {
	_, absent := r.absence(row)
	return !absent && (!r.UnaryOnly || row.Kind.Unary)
}

func overNearcall(opts ...nearcall.ServerOption) func(Services) (Conn, error) {
	return func(s Services) (Conn, error) { return clientOf(s, nearcall.NewServer(opts...)), nil }
}

// shared is nearcall where both sides promise not to write to messages.
func shared(s Services) (Conn, error) {
	return clientOf(s, nearcall.NewServer(nearcall.SharedMessages()), nearcall.WithSharedMessages()), nil
}

func clientOf(s Services, srv *nearcall.Server, opts ...nearcall.DialOption) Conn {
	register(srv, s)
	conn := srv.Client(opts...)
	return stubs(conn, func() {
		_ = conn.Close()
		srv.Stop()
	})
}

func overGrpchan(s Services) (Conn, error) {
	var channel inprocgrpc.Channel
	register(&channel, s)
	return stubs(&channel, func() {}), nil
}

func overBufconn(s Services) (Conn, error) {
	lis := bufconn.Listen(1 << 20)
	return overGRPC(s, lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
}

func overTCP(s Services) (Conn, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Conn{}, err
	}
	return overGRPC(s, lis, grpc.WithNoProxy())
}

func overGRPC(s Services, lis net.Listener, opts ...grpc.DialOption) (Conn, error) {
	conn, err := grpc.NewClient("passthrough:"+lis.Addr().String(),
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return Conn{}, errors.Join(err, lis.Close())
	}
	srv := grpc.NewServer()
	register(srv, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	return stubs(conn, func() {
		_ = conn.Close()
		srv.Stop()
		<-ended
	}), nil
}

// function is a client that calls the services' methods, with nothing between:
// what a program does that is not split into services. Caller and callee share
// their messages.
type function struct {
	testpb.TestServiceClient // nil: there is only what follows
	benchpb.RecordsClient    // nil as well
	to                       Services
}

func direct(s Services) (Conn, error) {
	f := function{to: s}
	return Conn{Test: f, Records: f, Close: func() {}}, nil
}

func (f function) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	return f.to.UnaryCall(ctx, in)
}

func (f function) Echo(ctx context.Context, in *benchpb.Record, _ ...grpc.CallOption) (*benchpb.Record, error) {
	return f.to.Echo(ctx, in)
}

// clone is function with messages copied, so that neither side sees what the
// other does to them later: the least that can be promised of a call.
type clone struct{ function }

func directClone(s Services) (Conn, error) {
	c := clone{function{to: s}}
	return Conn{Test: c, Records: c, Close: func() {}}, nil
}

func (c clone) UnaryCall(ctx context.Context, in *testpb.SimpleRequest, _ ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	return cloning(ctx, in, c.to.UnaryCall)
}

func (c clone) Echo(ctx context.Context, in *benchpb.Record, _ ...grpc.CallOption) (*benchpb.Record, error) {
	return cloning(ctx, in, c.to.Echo)
}

func cloning[In, Out proto.Message](ctx context.Context, in In, call func(context.Context, In) (Out, error)) (out Out, err error) {
	built, err := call(ctx, proto.CloneOf(in))
	if err != nil {
		return out, err
	}
	return proto.CloneOf(built), nil
}
