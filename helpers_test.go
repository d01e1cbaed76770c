package nearcall_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
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
	"github.com/nearcall/nearcall/internal/leak"
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

// listen listens on target until the end of the test.
func listen(t *testing.T, target string) nearcall.Listener {
	t.Helper()
	lis, err := nearcall.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// start has srv serve lis, and checks at the end of the test that it did well.
func start(t *testing.T, srv *nearcall.Server, lis net.Listener) {
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

// dial returns a client of target, closed at the end of the test.
func dial(t *testing.T, target string, opts ...nearcall.DialOption) testpb.TestServiceClient {
	t.Helper()
	conn, err := nearcall.NewClient(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// seen is a service that tells of the last call who made it.
func seen(p *peer.Peer, md *metadata.MD) echo {
	return echo{unary: func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if got, ok := peer.FromContext(ctx); ok {
			*p = *got
		}
		*md, _ = metadata.FromIncomingContext(ctx)
		return &testpb.SimpleResponse{Payload: in.Payload}, nil
	}}
}

// waiting is a service whose unary handler announces itself and waits until
// its context ends or release is closed.
func waiting() (e echo, running chan struct{}, release chan struct{}) {
	running, release = make(chan struct{}, 100), make(chan struct{})
	e.unary = func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		running <- struct{}{}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-release:
			return &testpb.SimpleResponse{Payload: in.Payload}, nil
		}
	}
	return e, running, release
}

// invoke makes a call on a goroutine of its own.
func invoke(ctx context.Context, client testpb.TestServiceClient, opts ...grpc.CallOption) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{}, opts...)
		done <- err
	}()
	return done
}

// hold has a test check, when everything it has set up is gone, that nothing is
// left of it.
func hold(t *testing.T) {
	t.Helper()
	before := measure()
	t.Cleanup(func() { before.check(t) })
}

// impatient are options of a client that connects again at once.
func impatient() nearcall.DialOption {
	return nearcall.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond}})
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

// within fails the test, with all stacks, when f takes longer than patience.
func within(t *testing.T, patience time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("in %v it did not come about that %s:\n\n%s", patience, what, strings.Join(leak.Find(), "\n\n"))
	}
}

// eventually fails the test when f does not become true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !f(); <-tick.C {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("it did not come about that %s:\n\n%s", what, strings.Join(leak.Find(), "\n\n"))
		}
	}
}
