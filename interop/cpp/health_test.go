package cpptest

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestHealth asks servers in C++ what it asks grpc-go's health server.
func TestHealth(t *testing.T) {
	for name, start := range map[string]func(*testing.T) string{
		"C++": func(t *testing.T) string { return startCPP(t, "unix") },
		"Go":  func(t *testing.T) string { return startGo(t, "unix") },
	} {
		t.Run(name, func(t *testing.T) {
			c := healthpb.NewHealthClient(dial(t, start(t), "unix"))
			for _, service := range []string{"", "nearcall.test.Echo"} {
				r, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
				if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
					t.Errorf("%q: %v, %v", service, r, err)
				}
			}
			_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "none"})
			if s := status.Convert(err); s.Code() != codes.NotFound || s.Message() != "unknown service" {
				t.Error(err)
			}
			for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
				"nearcall.test.Echo": healthpb.HealthCheckResponse_SERVING,
				"none":               healthpb.HealthCheckResponse_SERVICE_UNKNOWN,
			} {
				w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: service})
				if err != nil {
					t.Fatal(err)
				}
				if r, err := w.Recv(); err != nil || r.GetStatus() != want {
					t.Errorf("%q: %v, %v", service, r, err)
				}
			}
		})
	}
}
