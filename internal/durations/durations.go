// Package durations computes with durations that users and peers choose. Users write math.MaxInt64
// for "never". So no result overflows: it becomes the closest time.Duration instead.
// [time.Time.Add], timers and contexts take any duration as it is.
package durations

import (
	"math"
	"math/rand/v2"
	"time"
)

// Longest is the longest duration, some 292 years.
const Longest time.Duration = math.MaxInt64

// Of returns a number of nanoseconds as a duration; NaN becomes 0.
func Of(nanoseconds float64) time.Duration {
	switch {
	case math.IsNaN(nanoseconds):
		return 0
	case nanoseconds >= 1<<63:
		return Longest
	case nanoseconds <= -1<<63:
		return math.MinInt64
	}
	return time.Duration(nanoseconds)
}

// Sum returns a plus b.
func Sum(a, b time.Duration) time.Duration {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return Longest
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}

// Age returns the age at which a connection ends if its server's MaxConnectionAge is d. As in gRPC
// it is up to a tenth more or less, so that connections made together do not end together.
func Age(d time.Duration) time.Duration {
	if d == Longest {
		return d
	}
	const jitter = 0.1
	return Of(float64(d) * (1 + jitter*(2*rand.Float64()-1)))
}

// Recheck returns d, but at least a millisecond. It is for timers that check something again and
// again, and would take a processor if d is tiny.
func Recheck(d time.Duration) time.Duration { return max(d, time.Millisecond) }
