package main

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, c := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.5, 7},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{1, 2}, 0.5, 1},
		{[]time.Duration{1, 2, 3}, 0.5, 2},
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %v of %d values: %d, want %d", c.p, len(c.sorted), got, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{4}, 4},
		{[]float64{9, 1}, 5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{9, 1, 2, 4}, 3},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestEvenNoTimeMeasuresOneCall(t *testing.T) {
	n := 0
	s, err := (&lane{do: func() error { n++; return nil }}).measure(t.Context(), 0)
	if err != nil || n < 2 || s.perSecond <= 0 {
		t.Errorf("%d calls, %+v, %v; want one for the percentiles and one for the rate", n, s, err)
	}
}

func TestLatenciesDoNotGrowWithoutBound(t *testing.T) {
	l := &lane{do: func() error { return nil }}
	if err := l.each(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if len(l.latencies) != maxSamples {
		t.Errorf("%d latencies kept, want %d", len(l.latencies), maxSamples)
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
