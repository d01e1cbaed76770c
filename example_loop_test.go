package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/loop"
)

// A visited counts its calls in a plain field: only tasks of one loop access it.
type visited struct {
	healthpb.UnimplementedHealthServer
	calls int
}

func (v *visited) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	v.calls++
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// The handlers of a service that is registered on a loop run one at a time, so they need
// no lock.
func ExampleServer_On() {
	l := loop.New()
	service := &visited{}
	srv := nearcall.NewServer()
	healthpb.RegisterHealthServer(srv.On(l), service)
	conn := srv.Client()
	client := healthpb.NewHealthClient(conn)

	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	if err := l.Post(func() { fmt.Println(service.calls, "calls") }); err != nil {
		log.Fatal(err)
	}

	conn.Close()
	srv.Stop()
	if err := l.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output: 100 calls
}
