package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
)

// One server on one port, for ordinary gRPC clients and for nearcall's own.
func Example_network() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	ordinary, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer ordinary.Close()
	near, err := nearcall.NewClient("tcp:" + lis.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer near.Close()

	for _, conn := range []grpc.ClientConnInterface{ordinary, near} {
		reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Status)
	}
	// Output:
	// SERVING
	// SERVING
}
