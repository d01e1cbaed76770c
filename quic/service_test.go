package quic

import (
	"context"
	"testing"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
)

// A service is a test service whose methods are functions.
type service struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	stream func(testpb.TestService_FullDuplexCallServer) error
}

func (s service) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary == nil {
		return &testpb.SimpleResponse{Payload: in.Payload}, nil
	}
	return s.unary(ctx, in)
}

func (s service) FullDuplexCall(st testpb.TestService_FullDuplexCallServer) error {
	return s.stream(st)
}

var empty = &testpb.SimpleRequest{}

// payload returns a request of n bytes.
func payload(n int) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, n)}}
}

// serve serves svc at a UDP port and returns the server and its target.
func serve(t testing.TB, svc service, opts ...nearcall.ServerOption) (*nearcall.Server, string) {
	lis, err := nearcall.Listen("quic:127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config, _ := testTLS()
	return serveOn(t, lis, svc, append(opts, nearcall.Creds(nearcall.NewTLS(config)))...), lis.Target()
}

func serveOn(t testing.TB, lis nearcall.Listener, svc service, opts ...nearcall.ServerOption) *nearcall.Server {
	srv := nearcall.NewServer(opts...)
	testpb.RegisterTestServiceServer(srv, svc)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(lis); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return srv
}

// dial returns a client of target.
func dial(t testing.TB, target string, opts ...nearcall.DialOption) testpb.TestServiceClient {
	_, config := testTLS()
	conn, err := nearcall.NewClient(target, append([]nearcall.DialOption{nearcall.WithTransportCredentials(nearcall.NewTLS(config))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return testpb.NewTestServiceClient(conn)
}

// client returns a client of the server of n.
func (n *network) client(t *testing.T) testpb.TestServiceClient {
	return dial(t, "inproc:unused", options.WithDialer(n.dialer(t, &registry.Settings{})))
}
