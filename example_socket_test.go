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
	"google.golang.org/grpc/testdata"

	"github.com/nearcall/nearcall"
)

// Two processes on one machine connect through a unix socket, which needs no credentials.
// On Linux the connection becomes shared memory if both have the same user.
func Example_unix() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
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

// TLS over TCP, with grpc-go's credentials on both sides. The example of Creds shows mutual
// TLS.
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
