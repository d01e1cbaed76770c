package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
)

// Two processes of one machine meet at a unix socket. It needs no credentials,
// and each side can tell who the other is.
func Example_unix() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, whoCalls{})
	lis, err := nearcall.Listen("unix:" + filepath.Join(dir, "health.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}

// whoCalls serves callers of the same user.
type whoCalls struct {
	healthpb.UnimplementedHealthServer
}

func (whoCalls) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	status := healthpb.HealthCheckResponse_SERVING
	if p, ok := peer.FromContext(ctx); ok {
		who, ok := p.AuthInfo.(nearcall.UnixAuthInfo)
		if ok && int(who.UID) != os.Getuid() {
			status = healthpb.HealthCheckResponse_NOT_SERVING
		}
	}
	return &healthpb.HealthCheckResponse{Status: status}, nil
}

// Over TCP both sides get credentials, as with grpc-go.
func Example_tls() {
	serverCreds, err := credentials.NewServerTLSFromFile(testdata.Path("x509/server1_cert.pem"), testdata.Path("x509/server1_key.pem"))
	if err != nil {
		log.Fatal(err)
	}
	srv := nearcall.NewServer(nearcall.Creds(serverCreds))
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("tcp:127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	clientCreds, err := credentials.NewClientTLSFromFile(testdata.Path("x509/server_ca_cert.pem"), "x.test.example.com")
	if err != nil {
		log.Fatal(err)
	}
	conn, err := nearcall.NewClient(lis.Target(), nearcall.WithTransportCredentials(clientCreds))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status)
	// Output: SERVING
}
