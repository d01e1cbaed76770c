package nearcall_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/needs"
)

// echo is a service of one method of each kind. unary, when set, runs instead
// of the echo of UnaryCall, and bidi instead of that of FullDuplexCall.
type echo struct {
	testpb.UnimplementedTestServiceServer
	unary func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	bidi  func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (e echo) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if e.unary != nil {
		return e.unary(ctx, in)
	}
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (e echo) FullDuplexCall(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	if e.bidi != nil {
		return e.bidi(s)
	}
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

func (echo) StreamingOutputCall(in *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	for range 100 {
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
	return nil
}

func (echo) StreamingInputCall(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	n := 0
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return s.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		}
		if err != nil {
			return err
		}
		n += len(in.Payload.GetBody())
	}
}

// serve returns a server of e, stopped at the end of the test.
func serve(t testing.TB, e echo, opts ...nearcall.ServerOption) *nearcall.Server {
	t.Helper()
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, e)
	t.Cleanup(srv.Stop)
	return srv
}

// connect returns a client of srv, closed at the end of the test.
func connect(t testing.TB, srv *nearcall.Server, opts ...nearcall.DialOption) (testpb.TestServiceClient, *nearcall.ClientConn) {
	t.Helper()
	conn := srv.Client(opts...)
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn), conn
}

func payload(n int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, n)} }

func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// networks are some of sockets, and what unix sockets become where the system has
// shared memory: "shm" is set up by shm targets, "unix+shm" by unix targets.
func networks(sockets ...string) []string {
	if runtime.GOOS != "linux" {
		return sockets
	}
	return append(sockets, "shm", "unix+shm")
}

// available returns those of networks that the system has. Each of the others is
// a subtest that is skipped.
func available(t *testing.T, networks ...string) (have []string) {
	t.Helper()
	for _, network := range networks {
		if network == "tcp" || needs.HasUnixSockets() {
			have = append(have, network)
			continue
		}
		t.Run(network, func(t *testing.T) { needs.UnixSockets(t) })
	}
	return have
}

// targetFor returns what a server of network listens on, which nobody else does.
// It skips the test where the system has no such network.
func targetFor(t testing.TB, network string) string {
	t.Helper()
	if network == "tcp" {
		return "tcp:127.0.0.1:0"
	}
	needs.UnixSockets(t)
	if network == "shm" {
		return "shm:" + filepath.Join(t.TempDir(), "s")
	}
	return "unix:" + filepath.Join(t.TempDir(), "s")
}

// over are the options of clients of network, before opts: those of "unix" stay
// with the socket.
func over(network string, opts ...nearcall.DialOption) []nearcall.DialOption {
	if network == "unix" {
		opts = append([]nearcall.DialOption{nearcall.WithoutUpgrade()}, opts...)
	}
	return opts
}

// addressedAs is the network that a peer's address has over network.
func addressedAs(network string) string {
	if network == "unix+shm" {
		return "shm"
	}
	return network
}

func insecureCreds() credentials.TransportCredentials { return insecure.NewCredentials() }
