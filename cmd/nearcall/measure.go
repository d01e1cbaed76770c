package main

import (
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
	rates, ratios []float64               // calls per second, and how often those of the baseline, in each round
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
		Path: l.path, Call: l.call, PerSecond: median(l.rates), TimesGRPC: median(l.ratios),
		P50: time.Duration(l.times.ValueAtQuantile(50)), P99: time.Duration(l.times.ValueAtQuantile(99)),
	}
}

// measure measures the lane, and returns calls per second. In the first half of length it times each
// call, for the percentiles. In the second half it only counts calls, for the rate.
func (l *lane) measure(ctx context.Context, length time.Duration) (float64, error) {
	runtime.GC() // so that this lane does not pay for the garbage of the previous one
	if err := l.each(ctx, length/2); err != nil {
		return 0, err
	}
	return rate(ctx, l.do, length/2)
}

// each measures how long single calls take, and makes at least one. Times include one reading of the
// clock. Those of more than a minute count as a minute.
func (l *lane) each(ctx context.Context, length time.Duration) error {
	for start := now(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := now()
		if err := l.do(); err != nil {
			return err
		}
		after := now()
		_ = l.times.RecordValue(min((after - before).Nanoseconds(), l.times.HighestTrackableValue()))
		if after-start >= length {
			return nil
		}
	}
}

// rate makes calls in batches, at least one call, and returns calls per second.
func rate(ctx context.Context, do func() error, length time.Duration) (float64, error) {
	start := now()
	for n, batch := 0, 1; ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		for range batch {
			if err := do(); err != nil {
				return 0, err
			}
		}
		n += batch
		elapsed := now() - start
		if elapsed >= length {
			return float64(n) / max(elapsed, 1).Seconds(), nil
		}
		if elapsed < length/16 {
			batch *= 2
		}
	}
}

// median returns the median of values, the lower of two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[(len(values)-1)/2]
}
