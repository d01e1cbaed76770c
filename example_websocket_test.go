package nearcall_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nearcall/nearcall"
)

// A server takes WebSockets from an HTTP server that has other pages, too.
func ExampleServer_ServeHTTP() {
	srv := nearcall.NewServer()
	defer srv.Stop()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	mux := http.NewServeMux()
	mux.Handle("/calls", srv)
	mux.Handle("/", http.NotFoundHandler())
	there := httptest.NewServer(mux) // in a program: http.ListenAndServe(":8080", mux)
	defer there.Close()

	conn, err := nearcall.NewClient(strings.Replace(there.URL, "http", "ws", 1) + "/calls")
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
