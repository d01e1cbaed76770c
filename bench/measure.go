package main

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Percentiles are the percentiles that a Latency has.
var Percentiles = [...]int{50, 90, 95, 99}

// A Latency is the time of a call at each of Percentiles, in nanoseconds.
type Latency [len(Percentiles)]float64

// A Sample is one measurement.
type Sample struct {
	Ops     int
	Time    time.Duration
	Bytes   uint64 // allocated by the whole process
	Allocs  uint64
	CPU     time.Duration // of both processes, if there are two
	Latency Latency       // of unary calls
}

// NsPerOp returns the time per operation, in nanoseconds.
func (s Sample) NsPerOp() float64     { return float64(s.Time.Nanoseconds()) / float64(s.Ops) }
func (s Sample) bytesPerOp() float64  { return float64(s.Bytes) / float64(s.Ops) }
func (s Sample) allocsPerOp() float64 { return float64(s.Allocs) / float64(s.Ops) }
func (s Sample) cpuPerOp() float64    { return float64(s.CPU.Nanoseconds()) / float64(s.Ops) }

// Run performs n operations, divided among the callers. It returns how long they took,
// without the row's pauses.
func (f *Field) Run(n int) (time.Duration, error) {
	if f.Row.Pause > 0 {
		return f.runRested(n)
	}
	start := now()
	err := f.spread(n, func(l lane, from, to int) error {
		for range to - from {
			if err := l.op(false); err != nil {
				return err
			}
		}
		return nil
	})
	return now() - start, err
}

// runRested is Run for rows with a pause. It returns the time that operations took, on
// average for each caller.
func (f *Field) runRested(n int) (time.Duration, error) {
	var sum atomic.Int64
	err := f.spread(n, func(l lane, from, to int) error {
		for range to - from {
			time.Sleep(f.Row.Pause)
			start := now()
			if err := l.op(false); err != nil {
				return err
			}
			sum.Add(int64(now() - start))
		}
		return nil
	})
	return time.Duration(sum.Load()) / time.Duration(len(f.lanes)), err
}

// Check makes every caller perform an operation and compare the whole answer.
func (f *Field) Check() error {
	return f.spread(len(f.lanes), func(l lane, _, _ int) error { return l.op(true) })
}

// Time performs len(into) operations, divided among the callers, and records how long
// each took. Each time includes one reading of the clock.
func (f *Field) Time(into []time.Duration) error {
	clear(into) // touches all pages, so that no page fault is timed
	return f.spread(len(into), func(l lane, from, to int) error {
		part := into[from:to]
		last := now()
		for i := range part {
			if f.Row.Pause > 0 {
				time.Sleep(f.Row.Pause)
				last = now()
			}
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

// spread divides n operations among the callers, which run concurrently.
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

// Measure measures n operations. If latencies is not empty, it then times len(latencies)
// calls individually.
func (f *Field) Measure(n int, latencies []time.Duration) (Sample, error) {
	var before, after runtime.MemStats
	runtime.GC() // so that this rival does not pay for the garbage of the last
	theirs, err := f.serverCPU()
	if err != nil {
		return Sample{Ops: n}, f.wrap(err)
	}
	runtime.ReadMemStats(&before)
	ours := processCPU()
	elapsed, err := f.Run(n)
	s := Sample{Ops: n, Time: max(elapsed, 1), CPU: processCPU() - ours}
	runtime.ReadMemStats(&after)
	s.Bytes, s.Allocs = after.TotalAlloc-before.TotalAlloc, after.Mallocs-before.Mallocs
	if err == nil {
		var later time.Duration
		later, err = f.serverCPU()
		s.CPU += later - theirs
		err = f.wrap(err)
	}
	if err == nil && len(latencies) > 0 {
		err = f.Time(latencies)
		s.Latency = percentiles(latencies)
	}
	if err == nil {
		err = f.Check()
	}
	return s, err
}

// serverCPU returns the CPU time of the second process, or 0 if there is none.
func (f *Field) serverCPU() (time.Duration, error) {
	if f.conn.Peer == nil {
		return 0, nil
	}
	return f.conn.Peer.CPU()
}

// Calibrate returns how many operations take about d, and warms up the rival. It begins
// with one operation for each caller that it does not time, because that might open
// connections.
func (f *Field) Calibrate(d time.Duration) (int, error) {
	const steps = 100 // the most by which one attempt exceeds the last
	if err := f.Check(); err != nil {
		return 0, err
	}
	for n := len(f.lanes); ; {
		start := now()
		if _, err := f.Run(n); err != nil {
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

// percentiles sorts values, and returns for each percentile p the least value that p
// percent of the values do not exceed.
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

// median returns the median of values, or NaN if there are none.
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
