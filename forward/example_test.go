package forward_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
)

// A framework registers its services with a *grpc.Server. A nearcall server forwards their calls
// to it, and serves others itself.
func ExampleTo() {
	framework := grpc.NewServer()
	defer framework.Stop()
	healthpb.RegisterHealthServer(framework, health.NewServer())

	srv := nearcall.NewServer(forward.To(framework))
	defer srv.Stop() // before the framework's server
	testpb.RegisterTestServiceServer(srv, service{})

	conn := srv.Client()
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("forwarded:", reply.GetStatus())
	_, err = testpb.NewTestServiceClient(conn).UnaryCall(context.Background(), &testpb.SimpleRequest{})
	fmt.Println("its own:", err)
	// Output:
	// forwarded: SERVING
	// its own: <nil>
}
