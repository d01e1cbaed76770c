package main

import (
	"context"
	"errors"
	"net"

	"connectrpc.com/connect/v2/connectinprocess"
	"github.com/fullstorydev/grpchan/inprocgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/bench/internal/benchpb"
	"github.com/nearcall/nearcall/bench/internal/blobs"
	nearconnect "github.com/nearcall/nearcall/connect"
)

// A Rival is a way to make calls.
type Rival struct {
	Name      string                       // also names the benchmark, so do not change it
	Connect   func(Services) (Conn, error) // connects in process; nil if Dial is set
	Dial      func(row Row) (Conn, error)  // connects to a process that it starts
	UnaryOnly bool                         // it takes no part in rows of streams
	Without   []Absence                    // other rows that it takes no part in
	Note      string                       // explains its figures
	Limit     bool                         // it is not RPC, but a lower bound for RPC
	Flat      bool                         // it carries FlatBuffers
}

// An Absence says why a rival takes no part in some rows.
type Absence struct {
	Of  func(Row) bool
	Why string
}

// absence returns why the rival takes no part in row, if Without says so.
func (r Rival) absence(row Row) (why string, ok bool) {
	if row.Kind.Name == FlatBuffer.Name && !r.Flat {
		return onlyFlat, true
	}
	if row.Callers > 1000 && !r.Flat {
		return "nearcall and grpc-go alone are measured with 10,000 streams", true
	}
	for _, a := range r.Without {
		if a.Of(row) {
			return a.Why, true
		}
	}
	return "", false
}

// A Conn is a connected rival. Close ends everything that Connect or Dial started, and
// waits for it.
type Conn struct {
	Test    testpb.TestServiceClient
	Records benchpb.RecordsClient
	Blobs   blobs.BlobsClient        // nil unless the rival carries FlatBuffers
	On      grpc.ClientConnInterface // of Blobs
	Close   func()

	// Peer is the process that serves, or nil if it is this one. The caller of Close
	// must then stop it.
	Peer *peer
}

// stubs returns the generated clients over conn.
func stubs(conn grpc.ClientConnInterface, end func()) Conn {
	return Conn{Test: testpb.NewTestServiceClient(conn), Records: benchpb.NewRecordsClient(conn), Blobs: blobs.NewBlobsClient(conn), On: conn, Close: end}
}

// inProcessRivals are the rivals in one process.
var inProcessRivals = []Rival{
	{Name: "nearcall", Connect: overNearcall()},
	{Name: "nearcall-inline", Connect: overNearcall(nearcall.HandlerPlacement(nearcall.Inline)), UnaryOnly: true}, // streams do not differ
	{Name: "nearcall-shared", Connect: shared},
	{Name: "connect-nearcall", Connect: connectOverNearcall, Note: connectNote + "."},
	{Name: "connect-inprocess", Connect: connectInProcess, Note: "Connect v2's generated code over its package connectinprocess."},
	{Name: "grpchan", Connect: overGrpchan},
	{Name: "bufconn", Connect: overBufconn},
	{Name: "tcp", Connect: overTCP},
	{Name: "direct", Connect: direct, UnaryOnly: true, Limit: true},
	{Name: "direct-clone", Connect: directClone, UnaryOnly: true, Limit: true},
}

// Takes reports whether the rival takes part in row.
func (r Rival) Takes(row Row) bool {
	_, absent := r.absence(row)
	return !absent && (!r.UnaryOnly || row.Kind.Unary)
}

func overNearcall(opts ...nearcall.ServerOption) func(Services) (Conn, error) {
	return func(s Services) (Conn, error) { return clientOf(s, nearcall.NewServer(opts...)), nil }
}

// shared connects nearcall with the promise of both sides not to write to messages.
func shared(s Services) (Conn, error) {
	return clientOf(s, nearcall.NewServer(nearcall.ImmutableMessages()), nearcall.WithImmutableMessages()), nil
}

func clientOf(s Services, srv *nearcall.Server, opts ...nearcall.DialOption) Conn {
	register(srv, s)
	conn := srv.Client(opts...)
	return stubs(conn, func() {
		_ = conn.Close()
		srv.Stop()
	})
}

func connectOverNearcall(s Services) (Conn, error) {
	srv := nearcall.NewServer()
	nearconnect.Register(srv, connectServer(s))
	conn := srv.Client()
	return connectConn(nearconnect.NewTransport(conn), func() {
		_ = conn.Close()
		srv.Stop()
	}), nil
}

func connectInProcess(s Services) (Conn, error) {
	return connectConn(connectinprocess.New(connectServer(s)), func() {}), nil
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

// function is a client that calls the services' methods directly, as a program does that is
// not split into services. Caller and callee share their messages.
type function struct {
	testpb.TestServiceClient // nil: only the methods below exist
	benchpb.RecordsClient    // nil, too
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

// clone is function with copied messages, so that neither side sees later changes of the
// other: the least that a call must guarantee.
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
