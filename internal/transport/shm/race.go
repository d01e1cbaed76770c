//go:build race

package shm

import (
	"runtime"
	"unsafe"
)

// between stands for all that is between sides of this process, as ioSync of
// package syscall does for its reads and writes: what was done before a side sent
// has happened before the other goes on with what it received. The race detector
// cannot see that by itself: each side has the words at other addresses.
var between byte

func released() { runtime.RaceReleaseMerge(unsafe.Pointer(&between)) }

func acquired() { runtime.RaceAcquire(unsafe.Pointer(&between)) }
