package test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/chaos"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/internal/testing/needs"
)

// echo is a service with one method of each kind. unary, if set, replaces the echo of
// UnaryCall, and bidi replaces that of FullDuplexCall.
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

func listenTCP(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

// networks returns sockets and, on systems with shared memory, the two ways to set that
// up: "shm" with shm targets, "unix+shm" with unix targets.
func networks(sockets ...string) []string {
	if runtime.GOOS != "linux" {
		return sockets
	}
	return append(sockets, "shm", "unix+shm")
}

// available returns the networks that the system supports. For each of the others it
// adds a skipped subtest.
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

// targetFor returns an unused target for a server on network. It skips the test if the
// system does not support the network.
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

// over returns the client options for network, followed by opts: "unix" disables the
// upgrade to shared memory.
func over(network string, opts ...nearcall.DialOption) []nearcall.DialOption {
	if network == "unix" {
		opts = append(opts[:len(opts):len(opts)], nearcall.WithDisableSharedMemory()) // after a limit of opts
	}
	return opts
}

// addressedAs returns the network of a peer's address for calls over network.
func addressedAs(network string) string {
	if network == "unix+shm" {
		return "shm"
	}
	return network
}

func insecureCreds() credentials.TransportCredentials { return insecure.NewCredentials() }

// listen listens on target until the end of the test. The target may have been in use just now.
func listen(t *testing.T, target string) (lis nearcall.Listener) {
	t.Helper()
	if err := chaos.Again(func() (err error) {
		lis, err = nearcall.Listen(target)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// start makes srv serve lis, and checks at the end of the test that Serve returned nil.
func start(t testing.TB, srv *nearcall.Server, lis net.Listener) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// startGRPC serves service on lis with an ordinary gRPC server. The returned function stops it, as the
// end of the test does.
func startGRPC(t testing.TB, lis net.Listener, service testpb.TestServiceServer, opts ...grpc.ServerOption) (stop func()) {
	t.Helper()
	srv := grpc.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, service)
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("Serve: %v", err)
		}
	})
	stop = func() {
		srv.Stop()
		served.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// dial returns a client of target, closed at the end of the test.
func dial(t testing.TB, target string, opts ...nearcall.DialOption) testpb.TestServiceClient {
	t.Helper()
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// seen is a service that stores the peer and the metadata of the last call.
func seen(p *peer.Peer, md *metadata.MD) echo {
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if got, ok := peer.FromContext(ctx); ok {
			*p = *got
		}
		*md, _ = metadata.FromIncomingContext(ctx)
		return &testpb.SimpleResponse{Payload: in.Payload}, nil
	}}
}

// waiting is a service whose unary handler signals that it runs, then waits until its
// context is done or release is closed.
func waiting() (e echo, running chan struct{}, release chan struct{}) {
	running, release = make(chan struct{}, 100), make(chan struct{})
	e.unary = func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		select {
		case running <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-release:
			return &testpb.SimpleResponse{Payload: in.Payload}, nil
		}
	}
	return e, running, release
}

// invoke makes a call on a new goroutine.
func invoke(ctx context.Context, client testpb.TestServiceClient, opts ...grpc.CallOption) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, opts...)
		done <- err
	}()
	return done
}

// hold makes a test check, after all other cleanup, that it leaked nothing.
func hold(t *testing.T) {
	t.Helper()
	before := leak.Measure()
	t.Cleanup(func() { before.Check(t) })
}

// impatient are client options for a short backoff.
func impatient() nearcall.DialOption {
	return nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Minute})
}

// wantState waits for d and checks the state then.
func wantState(t *testing.T, conn *nearcall.ClientConn, d time.Duration, want connectivity.State) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := conn.GetState(); got != want {
		t.Errorf("after %v the connection is %v, want %v", d, got, want)
	}
}
