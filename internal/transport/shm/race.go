//go:build race

package shm

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// between makes the race detector see what happens before what, for two sides in one
// process, as ioSync of package syscall does for reads and writes: what one side did before
// it published happens before what the other does after it reads. The detector cannot see
// that by itself, as each side maps the words at different addresses.
var between byte

func released() { runtime.RaceReleaseMerge(unsafe.Pointer(&between)) }

func acquired() { runtime.RaceAcquire(unsafe.Pointer(&between)) }

// A sharedWord is a word in memory that two processes map. The race detector replaces the
// operations of package sync/atomic. Outside of Go's own memory its stores only release, and
// a processor may load other words before it completes them. A swap is sequentially
// consistent there, too.
type sharedWord struct{ v atomic.Uint64 }

func (w *sharedWord) Load() uint64 { return w.v.Load() }

func (w *sharedWord) Store(v uint64) { w.v.Swap(v) }
