//go:build race

package shm

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// The variable between serves to tell the race detector, for two sides in one process, that what
// one side did before it published happens before what the other side does after it reads. Package
// syscall's ioSync does the same for reads and writes. The detector cannot see this itself,
// because each side maps the words at different addresses.
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
