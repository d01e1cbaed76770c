//go:build race

package shm

import (
	"runtime"
	"unsafe"
)

// between makes the race detector see what happens before what, for two sides in one
// process, as ioSync of package syscall does for reads and writes: what one side did before
// it published happens before what the other does after it reads. The detector cannot see
// that by itself, as each side maps the words at different addresses.
var between byte

func released() { runtime.RaceReleaseMerge(unsafe.Pointer(&between)) }

func acquired() { runtime.RaceAcquire(unsafe.Pointer(&between)) }
