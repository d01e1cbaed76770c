package proxy

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A service's unary method calls its client, if the request asks for that, and its stream
// waits for its end.
type service struct {
	testpb.UnimplementedTestServiceServer
	name    string
	waiting chan struct{}
}

func (s service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if in.FillUsername {
		return testpb.NewTestServiceClient(nearcall.PeerConn(ctx)).UnaryCall(ctx, new(testpb.SimpleRequest))
	}
	return &testpb.SimpleResponse{Username: s.name}, nil
}

func (s service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	s.waiting <- struct{}{}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func (service) StreamingInputCall(stream grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
	for n := int32(0); ; n++ {
		if _, err := stream.Recv(); err == io.EOF {
			return stream.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: n})
		} else if err != nil {
			return err
		}
	}
}

// serve serves s.
func serve(t *testing.T, s service, opts ...nearcall.ServerOption) (*nearcall.Server, nearcall.Listener) {
	t.Helper()
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, s)
	go srv.Serve(lis)
	t.Cleanup(srv.Stop)
	return srv, lis
}

// start starts a proxy to target.
func start(t *testing.T, target string, opts ...nearcall.DialOption) nearcall.Listener {
	t.Helper()
	p, err := New(target, opts)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve(lis) }()
	t.Cleanup(func() {
		p.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return lis
}

// clients returns a nearcall client and an ordinary gRPC client of lis.
func clients(t *testing.T, lis nearcall.Listener, opts ...nearcall.DialOption) map[string]testpb.TestServiceClient {
	t.Helper()
	near, err := nearcall.NewClient(lis.Target(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	far, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return map[string]testpb.TestServiceClient{"nearcall": testpb.NewTestServiceClient(near), "grpc-go": testpb.NewTestServiceClient(far)}
}

// A target's calls reach the client behind the proxy.
func TestATargetCallsTheClientBehindTheProxy(t *testing.T) {
	_, behind := serve(t, service{name: "target"})
	own := nearcall.NewServer()
	testpb.RegisterTestServiceServer(own, service{name: "client"})
	t.Cleanup(own.Stop)
	both := clients(t, start(t, behind.Target()), nearcall.WithServer(own))
	reply, err := both["nearcall"].UnaryCall(t.Context(), &testpb.SimpleRequest{FillUsername: true})
	if err != nil || reply.Username != "client" {
		t.Errorf("%v, %v", reply, err)
	}
	_, err = both["grpc-go"].UnaryCall(t.Context(), &testpb.SimpleRequest{FillUsername: true})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("through grpc-go: %v", err)
	}
}

// When its target dies, a proxy ends the calls with Unavailable. When the target is back, it
// calls it again.
func TestAProxyOutlivesItsTarget(t *testing.T) {
	waiting := make(chan struct{}, 2)
	first, behind := serve(t, service{name: "first", waiting: waiting})
	var address atomic.Pointer[string] // of the target; nil while it is down
	up := func(lis nearcall.Listener) {
		a := lis.Addr().String()
		address.Store(&a)
	}
	up(behind)
	both := clients(t, start(t, behind.Target(), nearcall.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		if a := address.Load(); a != nil {
			return new(net.Dialer).DialContext(ctx, "tcp", *a)
		}
		return nil, syscall.ECONNREFUSED
	})))
	streams := make(map[string]grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse])
	for kind, client := range both {
		s, err := client.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		streams[kind] = s
		<-waiting
	}
	address.Store(nil)
	first.Stop()
	for kind, s := range streams {
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: the stream ended with %v", kind, err)
		}
	}
	for kind, client := range both {
		if _, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: without a target: %v", kind, err)
		}
	}
	_, again := serve(t, service{name: "second"})
	up(again)
	for kind, client := range both {
		for begun := time.Now(); ; {
			reply, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest), grpc.WaitForReady(true))
			if err == nil && reply.Username == "second" {
				break
			}
			if time.Since(begun) > 20*time.Second {
				t.Fatalf("%s: %v, %v", kind, reply, err)
			}
		}
	}
}

// A client that leaves ends its calls at the target.
// No upload through a proxy fails because the connection to the target ends. A client keeps less of
// it than it sends, so that it cannot be made again.
func TestUploadsThroughAProxySurviveTheTargetsConnections(t *testing.T) {
	_, target := serve(t, service{}, nearcall.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 25 * time.Millisecond}))
	for name, client := range clients(t, start(t, target.Target())) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 20 {
						st, err := client.StreamingInputCall(ctx, grpc.WaitForReady(true))
						for range 3 {
							if err == nil {
								err = st.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 100_000)}})
							}
						}
						if err == nil || err == io.EOF {
							_, err = st.CloseAndRecv()
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

func TestAClientThatLeavesEndsItsCallsAtTheTarget(t *testing.T) {
	waiting := make(chan struct{}, 1)
	srv, behind := serve(t, service{waiting: waiting})
	lis := start(t, behind.Target())
	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-waiting
	_ = conn.Close()
	srv.GracefulStop() // returns when the handler has
}

// A proxy to an ordinary gRPC server passes calls on, too.
func TestAProxyToAnOrdinaryGRPCServer(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, service{name: "ordinary"})
	go srv.Serve(lis)
	t.Cleanup(srv.Stop)
	for kind, client := range clients(t, start(t, "grpc:"+lis.Addr().String())) {
		reply, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
		if err != nil || reply.Username != "ordinary" {
			t.Errorf("%s: %v, %v", kind, reply, err)
		}
	}
}

func TestAProxyNeedsAValidTarget(t *testing.T) {
	if _, err := New("unix:", nil); err == nil {
		t.Error("a proxy without a path was made")
	}
}

// Stop does not wait for a target that accepts connections and says nothing.
func TestStopEndsDialsOfTheTarget(t *testing.T) {
	for _, kind := range []string{"nearcall", "grpc-go"} {
		t.Run(kind, func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			p, err := New("tcp:"+silent.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			lis, err := nearcall.Listen("tcp:127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- p.Serve(lis) }()
			client := clients(t, lis)[kind]
			called := make(chan error, 1)
			go func() {
				_, err := client.UnaryCall(t.Context(), new(testpb.SimpleRequest))
				called <- err
			}()
			conn, err := silent.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			begun := time.Now()
			p.Stop()
			if took := time.Since(begun); took > dialTimeout/2 {
				t.Errorf("Stop took %v", took)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			if err := <-called; status.Code(err) != codes.Unavailable {
				t.Errorf("the call ends with %v", err)
			}
		})
	}
}

// A call that has ended does not go on dialling the target.
func TestACallThatEndsEndsItsDial(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := clients(t, start(t, "tcp:"+silent.Addr().String()))["grpc-go"]
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() {
		_, err := client.UnaryCall(ctx, new(testpb.SimpleRequest))
		called <- err
	}()
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cancel()
	if err := <-called; status.Code(err) != codes.Canceled {
		t.Errorf("the call ends with %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(dialTimeout / 2))
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the connection to the target is still open: %v", err)
	}
}

// The proxy has gzip itself: this file must not import it.
func TestCompressedCallsPassThroughAProxy(t *testing.T) {
	_, behind := serve(t, service{name: "target"})
	for kind, client := range clients(t, start(t, behind.Target())) {
		payload := &testpb.Payload{Body: make([]byte, 10_000)}
		reply, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload}, grpc.UseCompressor("gzip"))
		if err != nil || reply.Username != "target" {
			t.Errorf("%s: %v, %v", kind, reply, err)
		}
	}
}
