package forward_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
)

type (
	bidi    = grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
	request = testpb.StreamingOutputCallRequest
	reply   = testpb.StreamingOutputCallResponse
)

// A service has one unary and one streaming method.
type service struct {
	testpb.UnimplementedTestServiceServer
	unary func(context.Context) error
	bidi  func(bidi) error
}

func (s service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary != nil {
		if err := s.unary(ctx); err != nil {
			return nil, err
		}
	}
	return &testpb.SimpleResponse{Payload: in.Payload}, nil
}

func (s service) FullDuplexCall(stream bidi) error {
	if s.bidi != nil {
		return s.bidi(stream)
	}
	for {
		in, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&reply{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

// forwarding returns a *grpc.Server with s, and a nearcall server that forwards to it.
func forwarding(t testing.TB, s service, opts ...nearcall.ServerOption) (*grpc.Server, *nearcall.Server) {
	t.Helper()
	there := grpc.NewServer()
	testpb.RegisterTestServiceServer(there, s)
	here := nearcall.NewServer(append(opts, forward.To(there))...)
	t.Cleanup(func() {
		here.Stop()
		there.Stop()
	})
	return there, here
}

func connect(t testing.TB, srv *nearcall.Server) *nearcall.ClientConn {
	conn := srv.Client()
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func payload(n int) *testpb.Payload { return &testpb.Payload{Body: make([]byte, n)} }

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

// Flow control works in both directions: a client waits for a handler that does not
// receive, and a handler for a client.
func TestWhoeverSendsWaitsForWhoReceives(t *testing.T) {
	const size, total, most = 1 << 10, 4 << 10, 512 // bytes of a message; messages; limit of messages in flight
	t.Run("client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			received := 0
			_, srv := forwarding(t, service{bidi: func(s bidi) error {
				<-release
				for {
					if _, err := s.Recv(); err != nil {
						return nil
					}
					received++
				}
			}})
			s, err := testpb.NewTestServiceClient(connect(t, srv)).FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var sent atomic.Int32
			go func() {
				for range total {
					if s.Send(&request{Payload: payload(size)}) != nil {
						return
					}
					sent.Add(1)
				}
				_ = s.CloseSend()
			}()
			synctest.Wait()
			if n := sent.Load(); n == 0 || n > most {
				t.Errorf("%d messages were sent to a handler that received none, want %d at most", n, most)
			}
			close(release)
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
			if received != total {
				t.Errorf("the handler received %d messages of %d", received, total)
			}
		})
	})
	t.Run("handler", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var sent atomic.Int32
			_, srv := forwarding(t, service{bidi: func(s bidi) error {
				for range total {
					if err := s.Send(&reply{Payload: payload(size)}); err != nil {
						return err
					}
					sent.Add(1)
				}
				return nil
			}})
			s, err := testpb.NewTestServiceClient(connect(t, srv)).FullDuplexCall(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := sent.Load(); n == 0 || n > most {
				t.Errorf("%d messages were sent to a client that received none, want %d at most", n, most)
			}
			received := 0
			for ; err == nil; received++ {
				_, err = s.Recv()
			}
			if err != io.EOF || received != total+1 {
				t.Errorf("the client received %d messages of %d, and %v", received-1, total, err)
			}
		})
	})
}

// A client that sends more than one message to a unary method fails, and at most one of the
// surplus messages is buffered.
func TestASecondRequestIsRefused(t *testing.T) {
	_, srv := forwarding(t, service{})
	s, err := connect(t, srv).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, testpb.TestService_UnaryCall_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = s.SendMsg(&testpb.SimpleRequest{Payload: payload(1 << 10)})
	}
	wantCode(t, "the call", s.RecvMsg(new(testpb.SimpleResponse)), codes.Internal)
}

func TestStopOfTheGRPCServerEndsItsCalls(t *testing.T) {
	for name, stop := range map[string]func(*grpc.Server){"Stop": (*grpc.Server).Stop, "GracefulStop": (*grpc.Server).GracefulStop} {
		t.Run(name, func(t *testing.T) {
			running, ended := make(chan struct{}), make(chan error, 2)
			wait := func(ctx context.Context) error {
				running <- struct{}{}
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			}
			there, srv := forwarding(t, service{unary: wait, bidi: func(s bidi) error { return wait(s.Context()) }})
			client := testpb.NewTestServiceClient(connect(t, srv))
			unary := make(chan error, 1)
			go func() {
				_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
				unary <- err
			}()
			<-running
			s, err := client.FullDuplexCall(t.Context()) // the client sends nothing
			if err != nil {
				t.Fatal(err)
			}
			<-running
			stop(there)
			wantCode(t, "the call that ran", <-unary, codes.Unavailable)
			_, err = s.Recv()
			wantCode(t, "the stream that ran", err, codes.Unavailable)
			for range 2 {
				if err := <-ended; err != context.Canceled {
					t.Errorf("a handler's context: %v", err)
				}
			}
			_, err = client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
			wantCode(t, "a later call", err, codes.Unavailable)
		})
	}
}

func TestServicesOfBothServersAreFound(t *testing.T) {
	there := grpc.NewServer()
	testpb.RegisterTestServiceServer(there, service{})
	healthpb.RegisterHealthServer(there, failing{})
	unknown := func(any, grpc.ServerStream) error { return status.Error(codes.DataLoss, "unknown") }
	srv := nearcall.NewServer(forward.To(there), nearcall.UnknownServiceHandler(unknown))
	t.Cleanup(srv.Stop)
	healthpb.RegisterHealthServer(srv, health.NewServer()) // wins over the *grpc.Server's
	reflection.RegisterV1(srv)
	conn := connect(t, srv)

	want := []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.testing.TestService"}
	if got := slices.Sorted(maps.Keys(srv.GetServiceInfo())); !slices.Equal(got, want) {
		t.Errorf("GetServiceInfo has %q, want %q", got, want)
	}
	s, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	listed, err := s.Recv()
	if err != nil || len(listed.GetListServicesResponse().GetService()) != len(want) {
		t.Errorf("reflection lists %v, %v", listed, err)
	}
	_ = s.CloseSend()
	if _, err := s.Recv(); err != io.EOF {
		t.Error(err)
	}
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	wantCode(t, "a service that both have", err, codes.OK)
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
	wantCode(t, "a service that is forwarded", err, codes.OK)
	err = conn.Invoke(t.Context(), "/grpc.testing.TestService/None", &testpb.Empty{}, &testpb.Empty{})
	wantCode(t, "a method that nobody has", err, codes.Unimplemented)
	err = conn.Invoke(t.Context(), "/no.Such/Method", &testpb.Empty{}, &testpb.Empty{})
	wantCode(t, "a service that nobody has", err, codes.DataLoss)
}

type failing struct {
	healthpb.UnimplementedHealthServer
}

func TestInterceptorsOfBothServersMayFailACall(t *testing.T) {
	refuse := errors.New("not like this")
	_, srv := forwarding(t, service{}, nearcall.StreamInterceptor(func(impl any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(impl, picky{s, refuse})
	}))
	client := testpb.NewTestServiceClient(connect(t, srv))
	_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{})
	if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), refuse.Error()) {
		t.Errorf("a call that an interceptor fails as it receives: %v", err)
	}
}

// picky receives nothing.
type picky struct {
	grpc.ServerStream
	err error
}

func (p picky) RecvMsg(any) error { return p.err }

func TestRPCCompressorIsRefused(t *testing.T) {
	//lint:ignore SA1019 programs still use it
	there := grpc.NewServer(grpc.RPCCompressor(grpc.NewGZIPCompressor()))
	testpb.RegisterTestServiceServer(there, service{})
	srv := nearcall.NewServer(forward.To(there))
	t.Cleanup(srv.Stop)
	_, err := testpb.NewTestServiceClient(connect(t, srv)).UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(10)})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "RPCCompressor") {
		t.Errorf("got %v", err)
	}
}

// Clients of the *grpc.Server on a network cannot use the compressor, or do harm with it.
func TestOthersCannotUseTheCompressor(t *testing.T) {
	there, _ := forwarding(t, service{})
	lis := bufconn.Listen(1 << 20)
	go func() { _ = there.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:buf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)
	for _, n := range []int{1, 100} {
		_, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: payload(n)}, grpc.UseCompressor("nearcall-forward"))
		wantCode(t, "a call", err, codes.Internal)
	}
	if _, err := client.UnaryCall(t.Context(), &testpb.SimpleRequest{}); err != nil {
		t.Errorf("without it: %v", err)
	}
}

func TestToNeedsAServer(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("nil is taken")
		}
	}()
	forward.To(nil)
}

// BenchmarkForwardTo compares forwarded calls with calls that are not forwarded.
func BenchmarkForwardTo(b *testing.B) {
	_, forwarded := forwarding(b, service{})
	direct := nearcall.NewServer()
	testpb.RegisterTestServiceServer(direct, service{})
	b.Cleanup(direct.Stop)
	socket := "unix:" + filepath.Join(b.TempDir(), "s")
	lis, err := nearcall.Listen(socket)
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- forwarded.Serve(lis) }()
	over, err := nearcall.NewClient(socket)
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []struct {
		name string
		conn grpc.ClientConnInterface
	}{{"direct", connect(b, direct)}, {"forwarded", connect(b, forwarded)}, {"forwarded-unix", over}} {
		client := testpb.NewTestServiceClient(path.conn)
		b.Run(path.name+"/unary", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.UnaryCall(b.Context(), &testpb.SimpleRequest{Payload: payload(64)}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(path.name+"/stream", func(b *testing.B) {
			b.ReportAllocs()
			s, err := client.FullDuplexCall(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := s.Send(&request{Payload: payload(64)}); err != nil {
					b.Fatal(err)
				}
				if _, err := s.Recv(); err != nil {
					b.Fatal(err)
				}
			}
			_ = s.CloseSend()
			if _, err := s.Recv(); err != io.EOF {
				b.Fatal(err)
			}
		})
	}
	_ = over.Close()
	forwarded.Stop()
	if err := <-served; err != nil {
		b.Error(err)
	}
}
