package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A lane is one kind of call over one connection, and its measurements.
type lane struct {
	path, call string
	do, end    func() error // end may be nil
	slots      []slot
	ratios     []float64
}

// A slot is the measurement of a lane in one round.
type slot struct {
	p50, p99  time.Duration
	perSecond float64
}

func newLane(c connection, k call) (*lane, error) {
	l := &lane{path: c.path, call: k.name}
	var err error
	if l.do, l.end, err = k.open(c.ctx, c.client); err != nil {
		return nil, l.wrap(err)
	}
	return l, nil
}

// close ends the lane and checks that its stream, if any, ends as it must.
func (l *lane) close() error {
	if l.end == nil {
		return nil
	}
	return l.wrap(l.end())
}

func (l *lane) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s, %s: %w", l.path, l.call, err)
}

func (l *lane) add(s slot, ratio float64) {
	l.slots = append(l.slots, s)
	l.ratios = append(l.ratios, ratio)
}

// row returns the medians over all rounds.
func (l *lane) row() row {
	r := row{Path: l.path, Call: l.call, TimesGRPC: median(l.ratios)}
	var p50, p99 []time.Duration
	var rates []float64
	for _, s := range l.slots {
		p50, p99, rates = append(p50, s.p50), append(p99, s.p99), append(rates, s.perSecond)
	}
	r.P50, r.P99, r.PerSecond = median(p50), median(p99), median(rates)
	return r
}

// maxSamples is how many latencies a slot keeps: enough for a p99, and few enough that
// sorting them takes hardly any time. A library's histogram would replace ten lines.
const maxSamples = 1 << 15

// A meter measures lanes. It reuses its memory from slot to slot.
type meter struct{ latencies []time.Duration }

// pair measures two lanes one after the other, each for the given time. With swap it
// measures b first.
func (m *meter) pair(ctx context.Context, a, b *lane, length time.Duration, swap bool) (ofA, ofB slot, err error) {
	if swap {
		ofB, ofA, err = m.pair(ctx, b, a, length, false)
		return ofA, ofB, err
	}
	if ofA, err = m.slot(ctx, a, length); err == nil {
		ofB, err = m.slot(ctx, b, length)
	}
	return ofA, ofB, err
}

// slot measures one lane. In the first half of length it times each call, for the percentiles. In
// the second half it only counts calls, for the rate.
func (m *meter) slot(ctx context.Context, l *lane, length time.Duration) (s slot, err error) {
	runtime.GC() // so that this lane does not pay for the garbage of the previous one
	if err := m.each(ctx, l.do, length/2); err != nil {
		return slot{}, l.wrap(err)
	}
	slices.Sort(m.latencies)
	s.p50, s.p99 = percentile(m.latencies, 0.50), percentile(m.latencies, 0.99)
	if s.perSecond, err = rate(ctx, l.do, length/2); err != nil {
		return slot{}, l.wrap(err)
	}
	return s, nil
}

// each measures how long single calls take, and makes at least one. Latencies include one reading
// of the clock.
func (m *meter) each(ctx context.Context, do func() error, length time.Duration) error {
	if m.latencies == nil {
		m.latencies = make([]time.Duration, 0, maxSamples)
	}
	m.latencies = m.latencies[:0]
	for start := now(); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := now()
		if err := do(); err != nil {
			return err
		}
		after := now()
		m.latencies = append(m.latencies, after-before)
		if len(m.latencies) == maxSamples || after-start >= length {
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

// clockCost returns the least time that a reading of the clock takes.
func clockCost() time.Duration {
	const n = 1000
	best := time.Hour
	for range 10 {
		start := now()
		for range n {
			_ = now()
		}
		best = min(best, (now()-start)/n)
	}
	return best
}

// A load records how busy other programs kept the processors during a tour.
type load struct {
	measure func(time.Duration) float64
	shares  []float64
}

const (
	probeTime = 60 * time.Millisecond

	// At a load of busyShare or more the figures come with a warning, because the compared paths did
	// not have equal use of the processors.
	busyShare = 0.15
)

// probe measures the load once. A tour does so before and after each stretch.
func (l *load) probe() { l.shares = append(l.shares, l.measure(probeTime)) }

// mean returns the mean of the probes, from 0 to 1.
func (l *load) mean() float64 {
	var sum float64
	for _, s := range l.shares {
		sum += s
	}
	return sum / float64(max(len(l.shares), 1))
}

// probeOthers measures the load of other programs. Tests replace it.
var probeOthers = othersShare

// othersShare keeps all processors busy for d, and returns the share of their time that this
// process did not get. Other programs took it, or a limit on this process withheld it.
func othersShare(d time.Duration) float64 {
	var all sync.WaitGroup
	n := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	cpu, begun := processCPU(), now()
	for range n {
		all.Go(func() {
			for now()-begun < d {
			}
		})
	}
	all.Wait()
	wanted := time.Duration(n) * (now() - begun)
	return min(max(1-float64(processCPU()-cpu)/float64(max(wanted, 1)), 0), 1)
}
