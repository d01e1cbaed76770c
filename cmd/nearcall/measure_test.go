package main

import (
	"context"
	"testing"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{4}, 4},
		{[]float64{9, 1}, 1},
		{[]float64{9, 1, 2}, 2},
		{[]float64{9, 1, 2, 4}, 2},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestEvenNoTimeMeasuresOneCall(t *testing.T) {
	n := 0
	l, _ := newLane(connection{}, call{open: func(context.Context, testpb.TestServiceClient) (func() error, error) {
		return func() error { n++; return nil }, nil
	}})
	err := l.measure(t.Context(), 0)
	if err != nil || n != 1 || l.row().PerSecond <= 0 || l.times.TotalCount() != 1 {
		t.Errorf("%d calls, %v a second, %v; want one", n, l.row().PerSecond, err)
	}
}

// TestTheClockIsFineEnoughForACall checks the resolution of the clock: a call in process takes
// less than a microsecond, which a coarse clock would measure as 0.
func TestTheClockIsFineEnoughForACall(t *testing.T) {
	for range 1000 {
		before := now()
		after := now()
		for after == before {
			after = now()
		}
		if after-before < 0 {
			t.Fatalf("the clock goes back by %v", before-after)
		}
		if after-before <= time.Microsecond {
			return
		}
	}
	t.Error("the clock moves in steps of more than a microsecond")
}
