package main

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// A histogram counts times in buckets whose widths are at most a sixteenth of the times in
// them. Its memory does not grow with what it counts. add may be called concurrently.
type histogram struct{ buckets [64 * perPower]atomic.Int64 }

const perPower = 16 // buckets for each power of two

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	power := bits.Len64(n)
	if power <= 4 {
		return int(n)
	}
	return (power-4)*perPower + int(n>>(power-5)&(perPower-1))
}

// least returns the least time of a bucket.
func least(bucket int) time.Duration {
	power := bucket/perPower + 4
	if power <= 4 {
		return time.Duration(bucket)
	}
	return time.Duration((perPower + bucket%perPower) << (power - 5))
}

func (h *histogram) add(d time.Duration) { h.buckets[bucketOf(d)].Add(1) }

func (h *histogram) reset() {
	for i := range h.buckets {
		h.buckets[i].Store(0)
	}
}

// sum returns how many times were added, and their 50th and 99th percentiles.
func (h *histogram) sum() (n int, p50, p99 time.Duration) {
	for i := range h.buckets {
		n += int(h.buckets[i].Load())
	}
	at := func(part float64) time.Duration {
		left := int(part * float64(n))
		for i := range h.buckets {
			if left -= int(h.buckets[i].Load()); left < 0 {
				return least(i)
			}
		}
		return 0
	}
	return n, at(0.5), at(0.99)
}
