package main

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"time"
)

// A result is one measurement.
type result struct {
	mean, p50, p99 time.Duration // per call
}

// measure makes calls one after another for about as long as lasts.
func measure(ctx context.Context, k kind, c caller, lasts time.Duration) (result, error) {
	runtime.GC() // so that this measurement does not pay for the garbage of the last
	var times []time.Duration
	begun := time.Now()
	for last := begun; ; {
		if err := k.call(ctx, c); err != nil {
			return result{}, err
		}
		now := time.Now()
		times = append(times, now.Sub(last))
		last = now
		if total := now.Sub(begun); total >= lasts {
			slices.Sort(times)
			return result{total / time.Duration(len(times)), times[len(times)/2], times[len(times)*99/100]}, nil
		}
	}
}

// results are the measurements of one stack.
type results []result

func (r *results) add(one result, err error) error {
	*r = append(*r, one)
	return err
}

func (r results) p50() time.Duration {
	return median(r, func(r result) time.Duration { return r.p50 }).Round(100 * time.Nanosecond)
}

func (r results) p99() time.Duration {
	return median(r, func(r result) time.Duration { return r.p99 }).Round(100 * time.Nanosecond)
}

// ratio returns the median of the ratios of a's mean time to b's in each pair.
func ratio(a, b results) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = float64(a[i].mean) / float64(b[i].mean)
	}
	return median(ratios, func(f float64) float64 { return f })
}

func median[T any, N cmp.Ordered](of []T, number func(T) N) N {
	numbers := make([]N, len(of))
	for i, one := range of {
		numbers[i] = number(one)
	}
	slices.Sort(numbers)
	return numbers[len(numbers)/2]
}
