package connector

import (
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/backoff"

	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

var extremes = []time.Duration{math.MinInt64, -1, 0, 1, time.Second, math.MaxInt64 - 1, math.MaxInt64}

// The checks of a client's idle timeout neither follow one another at once nor miss the timeout by more
// than a quarter.
func TestChecksOfAnyIdleTimeout(t *testing.T) {
	for _, timeout := range extremes {
		i := NewIdleness(timeout)
		if i == nil {
			if timeout > 0 {
				t.Errorf("%v is no timeout", timeout)
			}
			continue
		}
		for _, idle := range []time.Duration{0, 1, timeout / 2, timeout - 1} {
			if d := i.nextCheck(idle); d < time.Millisecond || d > max(timeout/4, time.Millisecond) {
				t.Errorf("of %v, %v have passed: the next check is after %v", timeout, idle, d)
			}
		}
	}
}

// However long a backoff is, and however many attempts have failed, the next attempt comes later than
// this one.
func TestAnyBackoff(t *testing.T) {
	for _, base := range extremes {
		for _, most := range extremes {
			for _, multiplier := range []float64{math.Inf(-1), -1, 0, 1, 1.6, math.MaxFloat64, math.Inf(1), math.NaN()} {
				for _, failures := range []int{0, 1, 10_000} {
					b := backoff.Config{BaseDelay: base, MaxDelay: most, Multiplier: multiplier, Jitter: 0.2}
					d := interval(b, failures)
					if d < time.Millisecond || most > time.Minute && base > time.Minute && multiplier >= 1 && d < time.Minute {
						t.Fatalf("%+v, %d failures: %v", b, failures, d)
					}
				}
			}
		}
	}
}
