package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestHealthExitsAsGRPCHealthProbe checks the exit codes for servers that answer.
func TestHealthExitsAsGRPCHealthProbe(t *testing.T) {
	probed := health.NewServer()
	probed.SetServingStatus("closed", healthpb.HealthCheckResponse_NOT_SERVING)
	probed.SetServingStatus("lost", healthpb.HealthCheckResponse_UNKNOWN)
	onEveryPath(t, func(srv server) { healthpb.RegisterHealthServer(srv, probed) }, func(t *testing.T, target string) {
		if got := succeeds(t, "health", "-max-time", "60", target); got != "status: SERVING\n" {
			t.Errorf("it prints %q", got)
		}
		fails(t, 4, "nearcall health: the status is NOT_SERVING", "health", "-max-time", "60", target, "closed")
		fails(t, 4, "nearcall health: the status is UNKNOWN", "health", "-max-time", "60", target, "lost")
		fails(t, 3, `nearcall: NotFound: the server does not tell the health of "other"`, "health", "-max-time", "60", target, "other")
	})
	onEveryPath(t, withShop, func(t *testing.T, target string) {
		fails(t, 3, "the server has no health service (unknown service grpc.health.v1.Health); its program can register", "health", "-max-time", "60", target)
	})
}

// A failing server ends the call as it would end without a server.
type failing struct {
	healthpb.UnimplementedHealthServer
}

func (failing) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, status.Error(codes.Unavailable, "not now")
}

func TestHealthTellsAFailedCallFromNoConnection(t *testing.T) {
	onEveryPath(t, func(srv server) { healthpb.RegisterHealthServer(srv, failing{}) }, func(t *testing.T, target string) {
		fails(t, 3, "nearcall: Unavailable: not now", "health", "-max-time", "60", target)
	})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fails(t, 2, "nearcall: DeadlineExceeded: ", "health", "-max-time", "100ms", "tcp:"+silent.Addr().String())
	fails(t, 2, "nearcall: DeadlineExceeded: ", "health", "-max-time", "100ms", silent.Addr().String())
	fails(t, 2, "nearcall: Unavailable: ", "health", "-max-time", "60", "tcp:127.0.0.1:1")
	fails(t, 2, "nearcall: Unavailable: ", "health", "-max-time", "60", "127.0.0.1:1")
}

func TestHealthIsMisused(t *testing.T) {
	fails(t, 1, "received 0", "health")
	fails(t, 1, "received 3", "health", "a", "b", "c")
	fails(t, 1, "unknown flag -x", "health", "-x", "a")
	fails(t, 1, "[plaintext insecure]", "health", "-plaintext", "-insecure", "a")
	fails(t, 1, "missing port", "health", "tcp:localhost")
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"health", onOne(t)}, stdio{strings.NewReader(""), &out, &errs}); code != exitInterrupted {
		t.Errorf("interrupted, it exits with %d: %s", code, errs.String())
	}
}
