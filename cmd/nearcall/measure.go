package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
)

// A lane is one kind of call over one connection, and its measurements.
type lane struct {
	path, call string
	do         func() error
	slots      []slot
	ratios     []float64
	latencies  []time.Duration // of the last slot
}

// A slot is the measurement of a lane in one round.
type slot struct {
	p50, p99  time.Duration
	perSecond float64
}

func newLane(c connection, k call) (*lane, error) {
	do, err := k.open(c.ctx, c.client)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", c.path, k.name, err)
	}
	return &lane{path: c.path, call: k.name, do: do}, nil
}

func (l *lane) add(s slot, ratio float64) {
	l.slots, l.ratios = append(l.slots, s), append(l.ratios, ratio)
}

// row returns the medians over all rounds.
func (l *lane) row() row {
	var p50, p99 []time.Duration
	var rates []float64
	for _, s := range l.slots {
		p50, p99, rates = append(p50, s.p50), append(p99, s.p99), append(rates, s.perSecond)
	}
	return row{Path: l.path, Call: l.call, P50: median(p50), P99: median(p99), PerSecond: median(rates), TimesGRPC: median(l.ratios)}
}

// measure measures the lane. In the first half of length it times each call, for the percentiles. In
// the second half it only counts calls, for the rate.
func (l *lane) measure(ctx context.Context, length time.Duration) (s slot, err error) {
	runtime.GC() // so that this lane does not pay for the garbage of the previous one
	if err := l.each(ctx, length/2); err != nil {
		return slot{}, err
	}
	slices.Sort(l.latencies)
	s.p50, s.p99 = percentile(l.latencies, 0.50), percentile(l.latencies, 0.99)
	s.perSecond, err = rate(ctx, l.do, length/2)
	return s, err
}

// maxSamples is how many latencies a slot keeps: enough for a p99, and few enough that
// sorting them takes hardly any time. A library's histogram would replace ten lines.
const maxSamples = 1 << 15

// each measures how long single calls take, and makes at least one. Latencies include one reading
// of the clock.
func (l *lane) each(ctx context.Context, length time.Duration) error {
	if l.latencies == nil {
		l.latencies = make([]time.Duration, 0, maxSamples)
	}
	l.latencies = l.latencies[:0]
	for start := now(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := now()
		if err := l.do(); err != nil {
			return err
		}
		after := now()
		l.latencies = append(l.latencies, after-before)
		if len(l.latencies) == maxSamples || after-start >= length {
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

// percentile returns the smallest value such that at least the share p of the sorted values is not
// larger than it.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median returns the median of values.
func median[T ~int64 | ~float64](values []T) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

const (
	probeTime = 200 * time.Millisecond

	// At a load of busyShare or more the figures come with a warning, because the compared paths did
	// not have equal use of the processors.
	busyShare = 0.15
)

// othersShare idles for d, and returns the share of the processors that other programs took.
func othersShare(d time.Duration) float64 {
	if busy, err := cpu.Percent(d, false); err == nil && len(busy) > 0 {
		return busy[0] / 100
	}
	return 0
}
