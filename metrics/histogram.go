package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/metrics/metricspb"
)

// A histogram counts times. Each power of two nanoseconds has eight buckets, so that a time
// differs from the limit of its bucket by an eighth at most. The first bucket counts all times up
// to a microsecond, and the last all times above about 17 minutes.
type histogram [buckets]atomic.Uint64

const (
	fine    = 3 // bits: eight buckets for each power of two
	least   = 10
	most    = 40
	buckets = (most-least)<<fine + 1
)

func (h *histogram) add(d time.Duration) { h[bucketOf(d)].Add(1) }

// bucketOf returns the index of the bucket that counts d.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 1<<least) - 1) // so that a limit belongs to its bucket
	power := bits.Len64(n) - 1
	if power < least {
		return 0
	}
	return min((power-least)<<fine+int(n>>(power-fine)&(1<<fine-1))+1, buckets-1)
}

// limit returns the longest time that bucket i counts. The last bucket counts longer times as
// well.
func limit(i int) time.Duration {
	if i == 0 {
		return 1 << least
	}
	i--
	power := i>>fine + least
	return 1<<power + time.Duration(i&(1<<fine-1)+1)<<(power-fine)
}

// proto returns the buckets that have counted something.
func (h *histogram) proto() (all []*metricspb.Bucket) {
	for i := range h {
		if n := h[i].Load(); n > 0 {
			all = append(all, &metricspb.Bucket{MostNanoseconds: int64(limit(i)), Calls: n})
		}
	}
	return all
}
