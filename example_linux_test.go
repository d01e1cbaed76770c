package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/peer"

	"github.com/nearcall/nearcall"
)

// Two processes of one user share memory, set up over a unix socket. Linux only. With
// unix:PATH the connection stays a socket if one side declines; with shm:PATH calls fail.
func Example_sharedMemory() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	lis, err := nearcall.Listen("shm:" + filepath.Join(dir, "health.sock"))
	if err != nil {
		log.Fatal(err)
	}
	go srv.Serve(lis)

	conn, err := nearcall.NewClient(lis.Target())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	var p peer.Peer
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{}, grpc.Peer(&p))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status, "over", p.Addr.Network())
	// Output: SERVING over shm
}
