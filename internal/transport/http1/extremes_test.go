package http1_test

import (
	"bufio"
	"context"
	"io"
	"math"
	"net"
	"runtime/metrics"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
)

// A connection is not closed at an age that means never. MaxConnectionIdle has a default here.
func TestAgesThatMeanNever(t *testing.T) {
	call := asks()[0].text
	answered := func(t *testing.T, client net.Conn, in *bufio.Reader) {
		t.Helper()
		if _, err := io.Copy(io.Discard, request(t, client, in, call).Body); err != nil {
			t.Error(err)
		}
	}
	for _, never := range []time.Duration{math.MinInt64, -1, 0, math.MaxInt64 - 1, math.MaxInt64} {
		inTime(t, keepalive.ServerParameters{MaxConnectionIdle: math.MaxInt64, MaxConnectionAge: never}, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
			answered(t, client, in)
			time.Sleep(100 * 365 * 24 * time.Hour)
			answered(t, client, in)
		})
	}
	for _, idle := range []time.Duration{math.MinInt64, -1, 0} {
		inTime(t, keepalive.ServerParameters{MaxConnectionIdle: idle}, newAnswers(), func(t *testing.T, client net.Conn, in *bufio.Reader) {
			answered(t, client, in)
			closes(t, in, 2*time.Minute)
		})
	}
}

// A tiny MaxConnectionIdle costs nothing while a request is answered.
func TestATinyIdleTime(t *testing.T) {
	started := func() uint64 {
		all := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
		metrics.Read(all)
		return all[0].Value.Uint64()
	}
	svc := newAnswers()
	unary := svc.unary
	svc.unary = func(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		began := started()
		time.Sleep(20 * time.Microsecond)
		if n := started() - began; n > 1000 {
			t.Errorf("%d goroutines in 20 µs", n)
		}
		return unary(ctx, in)
	}
	inTime(t, keepalive.ServerParameters{MaxConnectionIdle: 1}, svc, func(t *testing.T, client net.Conn, in *bufio.Reader) {
		if _, err := io.Copy(io.Discard, request(t, client, in, asks()[0].text).Body); err != nil {
			t.Error(err)
		}
		closes(t, in, time.Millisecond)
	})
}
