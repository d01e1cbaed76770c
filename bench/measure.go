package main

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A Sample is one measurement.
type Sample struct {
	Ops    int
	Time   time.Duration
	Bytes  uint64 // allocated by the whole process
	Allocs uint64
}

// NsPerOp returns the time that an operation took, in nanoseconds.
func (s Sample) NsPerOp() float64     { return float64(s.Time.Nanoseconds()) / float64(s.Ops) }
func (s Sample) bytesPerOp() float64  { return float64(s.Bytes) / float64(s.Ops) }
func (s Sample) allocsPerOp() float64 { return float64(s.Allocs) / float64(s.Ops) }

// Run does n operations, divided among the callers.
func (f *Field) Run(n int) error {
	if len(f.lanes) == 1 {
		return f.run(f.lanes[0], n)
	}
	errs := make([]error, len(f.lanes))
	var wg sync.WaitGroup
	for i, l := range f.lanes {
		share := n / len(f.lanes)
		if i < n%len(f.lanes) {
			share++
		}
		wg.Go(func() { errs[i] = f.run(l, share) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (f *Field) run(l lane, n int) error {
	for range n {
		if err := l.do(); err != nil {
			return f.wrap(err)
		}
	}
	return nil
}

// Measure measures n operations.
func (f *Field) Measure(n int) (Sample, error) {
	var before, after runtime.MemStats
	runtime.GC() // the garbage of the rival before is not this one's
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := f.Run(n)
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	return Sample{n, max(elapsed, 1), after.TotalAlloc - before.TotalAlloc, after.Mallocs - before.Mallocs}, err
}

// Calibrate returns how many operations take about d. It warms up on the way.
func (f *Field) Calibrate(d time.Duration) (int, error) {
	const steps = 100 // at most so many times more at once
	for n := 1; ; {
		start := time.Now()
		if err := f.Run(n); err != nil {
			return 0, err
		}
		elapsed := max(time.Since(start), 1)
		want := float64(n) * float64(d) / float64(elapsed)
		if elapsed >= d/4 {
			return max(1, int(math.Round(want))), nil
		}
		n = int(min(math.Ceil(want), float64(n)*steps))
	}
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
