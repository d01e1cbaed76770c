package forward_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
)

// A library listens and serves itself, and takes a function that makes its *grpc.Server. Its server
// then takes nearcall's clients, too.
func ExampleNewServer() {
	// What a library does with the function that it takes.
	library := func(newServer func([]grpc.ServerOption) *grpc.Server) (address string, stop func()) {
		srv := newServer([]grpc.ServerOption{grpc.MaxRecvMsgSize(1 << 20)})
		healthpb.RegisterHealthServer(srv, health.NewServer())
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		go srv.Serve(lis)
		return lis.Addr().String(), srv.Stop
	}
	address, stop := library(forward.NewServer)
	defer stop()

	conn, err := nearcall.NewClient("tcp:" + address)
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
