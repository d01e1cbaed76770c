package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A lane is one kind of call over one connection, and its measurements.
type lane struct {
	path, call    string
	do            func() error
	times         *hdrhistogram.Histogram // of single calls, in nanoseconds
	rates, ratios []float64               // calls per second, and how often those of the baseline, in each round; the baseline has no ratios
}

func newLane(c connection, k call) (*lane, error) {
	do, err := k.open(c.ctx, c.client)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", c.path, k.name, err)
	}
	return &lane{path: c.path, call: k.name, do: do, times: hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)}, nil
}

// row returns the percentiles of all rounds, and the medians of their rates.
func (l *lane) row() row {
	return row{
		Path: l.path, Call: l.call, PerSecond: median(l.rates), TimesGRPC: cmp.Or(median(l.ratios), 1),
		P50: time.Duration(l.times.ValueAtQuantile(50)), P99: time.Duration(l.times.ValueAtQuantile(99)),
	}
}

// reset forgets what was measured.
func (l *lane) reset() {
	l.times.Reset()
	l.rates = nil
}

// measure makes calls for some time, and at least one, and times each. Times include one reading of the
// clock. Those of more than a minute count as a minute.
func (l *lane) measure(ctx context.Context, length time.Duration) error {
	runtime.GC() // so that this lane does not pay for the garbage of the previous one
	start := now()
	for n, before := 1, start; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.do(); err != nil {
			return err
		}
		after := now()
		_ = l.times.RecordValue(min((after - before).Nanoseconds(), l.times.HighestTrackableValue()))
		if elapsed := after - start; elapsed >= length {
			l.rates = append(l.rates, float64(n)/max(elapsed, 1).Seconds())
			return nil
		}
		before = after
	}
}

// median returns the median of values, the lower of two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[(len(values)-1)/2]
}
