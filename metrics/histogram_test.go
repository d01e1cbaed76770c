package metrics

import (
	"math"
	"testing"
	"time"
)

func TestTimesAreInTheirBuckets(t *testing.T) {
	for i := 1; i < buckets; i++ {
		if d := limit(i); bucketOf(d) != i || bucketOf(limit(i-1)+1) != i {
			t.Errorf("bucket %d: its limits are in %d and %d", i, bucketOf(limit(i-1)+1), bucketOf(d))
		}
		if before := limit(i - 1); limit(i)-before > before/8 {
			t.Errorf("bucket %d is wide: from %v to %v", i, before, limit(i))
		}
	}
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, 1: 0, time.Microsecond: 0, math.MaxInt64: buckets - 1, 24 * time.Hour: buckets - 1} {
		if got := bucketOf(d); got != want {
			t.Errorf("%v is in bucket %d, want %d", d, got, want)
		}
	}
}
