//go:build !race

package shm

import "sync/atomic"

// released and acquired tell the race detector what happens before what; without it they do
// nothing.
func released() {}

func acquired() {}

// A sharedWord is a word in memory that two processes map.
type sharedWord = atomic.Uint64
