package main

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Percentiles are those that a Latency has.
var Percentiles = [...]int{50, 90, 95, 99}

// A Latency is how long calls took, in nanoseconds, at each of Percentiles.
type Latency [len(Percentiles)]float64

// A Sample is one measurement.
type Sample struct {
	Ops     int
	Time    time.Duration
	Bytes   uint64 // allocated by the whole process
	Allocs  uint64
	Latency Latency // of unary calls
}

// NsPerOp returns the time that an operation took, in nanoseconds.
func (s Sample) NsPerOp() float64     { return float64(s.Time.Nanoseconds()) / float64(s.Ops) }
func (s Sample) bytesPerOp() float64  { return float64(s.Bytes) / float64(s.Ops) }
func (s Sample) allocsPerOp() float64 { return float64(s.Allocs) / float64(s.Ops) }

// Run does n operations, divided among the callers.
func (f *Field) Run(n int) error {
	return f.spread(n, func(l lane, from, to int) error {
		for range to - from {
			if err := l.op(false); err != nil {
				return err
			}
		}
		return nil
	})
}

// Check has every caller do an operation and compare all of the answer.
func (f *Field) Check() error {
	return f.spread(len(f.lanes), func(l lane, _, _ int) error { return l.op(true) })
}

// Time does as many operations as into has room for, divided among the
// callers, and notes how long each took. That is from one reading of the clock
// to the next, so that each is longer by one reading.
func (f *Field) Time(into []time.Duration) error {
	clear(into) // no page is new to the system when the clock runs
	return f.spread(len(into), func(l lane, from, to int) error {
		part := into[from:to]
		last := now()
		for i := range part {
			if err := l.op(false); err != nil {
				return err
			}
			t := now()
			part[i] = t - last
			last = t
		}
		return nil
	})
}

// spread divides n operations among the callers, who do theirs at the same time.
func (f *Field) spread(n int, do func(l lane, from, to int) error) error {
	callers := len(f.lanes)
	if callers == 1 {
		return f.wrap(do(f.lanes[0], 0, n))
	}
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i, l := range f.lanes {
		wg.Go(func() { errs[i] = do(l, n*i/callers, n*(i+1)/callers) })
	}
	wg.Wait()
	return f.wrap(errors.Join(errs...))
}

// Measure measures n operations. With latencies, which is not empty then, it
// goes on to time single calls, as many as there is room for.
func (f *Field) Measure(n int, latencies []time.Duration) (Sample, error) {
	var before, after runtime.MemStats
	runtime.GC() // the garbage of the rival before is not this one's
	runtime.ReadMemStats(&before)
	start := now()
	err := f.Run(n)
	elapsed := now() - start
	runtime.ReadMemStats(&after)
	s := Sample{Ops: n, Time: max(elapsed, 1), Bytes: after.TotalAlloc - before.TotalAlloc, Allocs: after.Mallocs - before.Mallocs}
	if err == nil && len(latencies) > 0 {
		err = f.Time(latencies)
		s.Latency = percentiles(latencies)
	}
	if err == nil {
		err = f.Check()
	}
	return s, err
}

// Calibrate returns how many operations take about d. It warms up on the way.
func (f *Field) Calibrate(d time.Duration) (int, error) {
	const steps = 100 // at most so many times more at once
	for n := 1; ; {
		start := now()
		if err := f.Run(n); err != nil {
			return 0, err
		}
		elapsed := max(now()-start, 1)
		want := float64(n) * float64(d) / float64(elapsed)
		if elapsed >= d/4 {
			return max(1, int(math.Round(want))), nil
		}
		n = int(min(math.Ceil(want), float64(n)*steps))
	}
}

// percentiles sorts values, and returns for each percentile the least value
// that so many percent do not exceed.
func percentiles(values []time.Duration) Latency {
	slices.Sort(values)
	var l Latency
	for i, p := range Percentiles {
		l[i] = float64(values[(len(values)*p+99)/100-1].Nanoseconds())
	}
	return l
}

// clockReading returns how long it takes to read the clock.
func clockReading() time.Duration {
	const times = 10_000
	start := now()
	for range times {
		now()
	}
	return (now() - start) / times
}

// median returns the value in the middle, the mean of two where two are.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}
