// Package reserve makes the garbage collector run less often while large messages are
// received.
//
// A program with little live memory collects whenever it has allocated a few megabytes, and so
// once in a few large messages. A collection takes as long as several of them, because it needs
// the other goroutines and processors. So while large messages come, the package holds a piece
// of memory that counts as live: the next collection then comes that much later. Nobody writes
// to the piece, so it occupies addresses and no pages.
//
// What it costs is garbage: the heap grows by up to [Size] more before it is collected.
package reserve

import (
	"math"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// Size is how many bytes the program allocates more before the collector runs, at most.
	Size = 16 << 20

	// Large is the size from which a message is large, in bytes.
	Large = 64 << 10

	// quietCollections is the number of collections in turn without a large message between
	// them after which the memory is let go. The runtime collects at least every two minutes.
	quietCollections = 2
)

// recent is set if a large message has come since the last collection.
var recent atomic.Bool

// held is what the process holds.
var held struct {
	mu      sync.Mutex
	memory  *strings.Builder // nil if there is none; a Builder's memory is not cleared
	size    int
	marked  int  // size at the last collection
	quiet   int  // collections since a large message came
	watched bool // look runs after the next collection
}

// Received records that a message of n bytes was received. It may be called concurrently.
func Received(n int) {
	if n < Large || recent.Load() {
		return
	}
	recent.Store(true)
	held.mu.Lock()
	defer held.mu.Unlock()
	held.quiet = 0
	if held.size == 0 { // otherwise look decides, which knows what was held at the last collection
		adjust()
	}
	watch()
}

// Held returns the number of bytes that the process holds.
func Held() int {
	held.mu.Lock()
	defer held.mu.Unlock()
	return held.size
}

// Active reports whether memory is held, or may be after the next collection. While no large
// messages come, a few collections make it false.
func Active() bool {
	held.mu.Lock()
	defer held.mu.Unlock()
	return held.size > 0 || held.watched
}

// A collection is unreachable when it is made, so its cleanup runs after the next one.
type collection struct{ _ *int }

// watch makes look run after the next collection. held.mu is held.
func watch() {
	if !held.watched {
		held.watched = true
		runtime.AddCleanup(new(collection), func(struct{}) { look() }, struct{}{})
	}
}

// look runs after a collection.
func look() {
	held.mu.Lock()
	defer held.mu.Unlock()
	held.watched = false
	held.marked = held.size
	if held.quiet++; recent.Swap(false) {
		held.quiet = 0
	}
	if held.quiet >= quietCollections {
		hold(0)
		return
	}
	adjust()
	watch()
}

// adjust makes the process hold what is useful now. held.mu is held.
func adjust() { hold(useful(measure(), held.size, held.marked)) }

// hold makes the process hold n bytes. held.mu is held.
func hold(n int) {
	switch {
	case n == held.size:
		return
	case n == 0:
		held.memory = nil
	default:
		held.memory = new(strings.Builder)
		held.memory.Grow(n)
	}
	held.size = n
}

// A heap is what the runtime says of its memory and of the collector's settings.
type heap struct {
	percent uint64 // GOGC; math.MaxUint64 if it is off
	limit   uint64 // GOMEMLIMIT, in bytes; math.MaxInt64 if there is none
	total   uint64 // all memory that counts for the limit, in bytes
	live    uint64 // what the last collection left, in bytes
}

// useful returns how many bytes to hold. The process holds held already, and held marked at the
// last collection. It is nothing if the program has as much live memory of its own, if there is
// no other collection than at the limit, or if the limit is so near that the collector would
// run more often.
func useful(h heap, held, marked int) int {
	if h.percent == 0 || h.percent > math.MaxInt32 {
		return 0
	}
	n := uint64(Size)
	if h.percent > 100 { // as much garbage comes from less live memory
		n = Size * 100 / h.percent
	}
	switch {
	case h.live-min(h.live, uint64(marked)) >= n:
		return 0
	case h.limit < math.MaxInt64 && h.total-min(h.total, uint64(held)) > h.limit/2-min(h.limit/2, 4*Size):
		return 0
	}
	return int(n)
}

func measure() heap {
	var s = [...]metrics.Sample{
		{Name: "/gc/gogc:percent"},
		{Name: "/gc/gomemlimit:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(s[:])
	var v [len(s)]uint64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 {
			v[i] = s[i].Value.Uint64()
		}
	}
	return heap{percent: v[0], limit: v[1], total: v[2] - v[3], live: v[4]}
}
