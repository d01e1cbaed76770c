package ecosystem

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

func runHealth(t *testing.T, run runner) (*health.Server, healthpb.HealthClient) {
	h := health.NewServer()
	r := run(t, program{register: func(srv reflection.GRPCServer) { healthpb.RegisterHealthServer(srv, h) }})
	return h, healthpb.NewHealthClient(r.conn)
}

func TestHealthChecksTellTheStatus(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		h, client := runHealth(t, run)
		check := func(service string, want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || got.GetStatus() != want {
				t.Errorf("Check of %q is %v, %v; want %v", service, got.GetStatus(), err, want)
			}
		}
		h.SetServingStatus("tea", healthpb.HealthCheckResponse_NOT_SERVING)
		check("", healthpb.HealthCheckResponse_SERVING)
		check("tea", healthpb.HealthCheckResponse_NOT_SERVING)
		h.SetServingStatus("tea", healthpb.HealthCheckResponse_SERVING)
		check("tea", healthpb.HealthCheckResponse_SERVING)
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "coffee"}); status.Code(err) != codes.NotFound {
			t.Errorf("Check of an unknown service: %v", err)
		}
		list, err := client.List(t.Context(), &healthpb.HealthListRequest{})
		if err != nil || len(list.GetStatuses()) != 2 {
			t.Errorf("List is %v, %v", list, err)
		}
		h.Shutdown()
		check("", healthpb.HealthCheckResponse_NOT_SERVING)
		check("tea", healthpb.HealthCheckResponse_NOT_SERVING)
	})
}

func TestHealthWatchFollowsTheStatusUntilItIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		h, client := runHealth(t, run)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "tea"})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			got, err := watch.Recv()
			if err != nil || got.GetStatus() != want {
				t.Fatalf("Watch saw %v, %v; want %v", got.GetStatus(), err, want)
			}
		}
		expect(healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
		h.SetServingStatus("tea", healthpb.HealthCheckResponse_SERVING)
		expect(healthpb.HealthCheckResponse_SERVING)
		h.Shutdown()
		expect(healthpb.HealthCheckResponse_NOT_SERVING)
		h.Resume()
		expect(healthpb.HealthCheckResponse_SERVING)
		cancel()
		if _, err := watch.Recv(); status.Code(err) != codes.Canceled {
			t.Errorf("after the cancel: %v", err)
		}
	})
}
