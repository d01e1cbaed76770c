//go:build race

package shm

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// For two sides in one process, the variable between tells the race detector that everything
// before a publish happens before everything after the read of it. Package syscall's ioSync
// does the same for reads and writes. The detector cannot see this itself, because each side
// maps the words at different addresses.
var between byte

func released() { runtime.RaceReleaseMerge(unsafe.Pointer(&between)) }

func acquired() { runtime.RaceAcquire(unsafe.Pointer(&between)) }

// A sharedWord is a word in memory that two processes map. The race detector replaces the
// operations of package sync/atomic. Outside of Go's memory its stores only release, and a
// processor may load other words before it completes them. Its swap is sequentially consistent
// even there.
type sharedWord struct{ v atomic.Uint64 }

func (w *sharedWord) Load() uint64   { return w.v.Load() }
func (w *sharedWord) Store(v uint64) { w.v.Swap(v) }
