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

// registerHealth registers the service with either server. A function that registers
// reflection as well takes a nearcall.Registrar.
func registerHealth(s grpc.ServiceRegistrar, impl healthpb.HealthServer) {
	healthpb.RegisterHealthServer(s, impl)
}

// One implementation on two servers: a grpc.Server for ordinary gRPC clients on the
// network, and a nearcall.Server for clients in this process.
func Example_network() {
	impl := health.NewServer()

	network := grpc.NewServer()
	defer network.Stop()
	registerHealth(network, impl)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go network.Serve(lis)

	near := nearcall.NewServer()
	defer near.Stop()
	registerHealth(near, impl)

	outside, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer outside.Close()
	inside := near.Client()
	defer inside.Close()

	for _, conn := range []grpc.ClientConnInterface{outside, inside} {
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
