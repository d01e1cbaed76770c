package shm

import (
	"errors"
	"sync/atomic"
)

// Memory bounds what this side takes for the rings and slabs of several
// connections together. It may be used by any number of goroutines.
type Memory struct {
	most int64
	used atomic.Int64
}

// NewMemory returns a bound of so many bytes.
func NewMemory(bytes int64) *Memory { return &Memory{most: bytes} }

// take takes n bytes, and reports whether there are so many.
func (m *Memory) take(n int) bool {
	if m.used.Add(int64(n)) > m.most {
		m.used.Add(-int64(n))
		return false
	}
	counters.memory.Add(int64(n))
	return true
}

// give gives n bytes back.
func (m *Memory) give(n int) {
	m.used.Add(-int64(n))
	counters.memory.Add(-int64(n))
}

var errMemory = errors.New("as much shared memory is used as may be: see MaxSharedMemory")
