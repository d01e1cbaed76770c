package shm

import (
	"errors"
	"sync/atomic"
)

// Memory bounds what this side takes for the rings and slabs of several
// connections together. It may be used by any number of goroutines.
//
// Memory that connections of different peers share is kept from those that take it
// and do not give it back. Slabs leave an eighth of it to rings. And the slabs of one
// connection come to at most a quarter of what they leave to others: the more peers
// hold slabs, the less each of them gets, and the next still gets some.
type Memory struct {
	max    int64
	shared bool // among connections of different peers
	used   atomic.Int64
}

const (
	ringsPart = 8 // of which one part is left to rings
	slabsPart = 4 // times what a connection's slabs come to has to be left
)

// NewMemory returns a bound of so many bytes. shared says that it is for
// connections of different peers, which each get a share.
func NewMemory(bytes int64, shared bool) *Memory { return &Memory{max: bytes, shared: shared} }

// take takes n bytes, and reports whether there are so many.
func (m *Memory) reserve(n int) bool { return m.reserveBelow(m.max, int64(n), 0) }

// reserveSlabs takes n bytes for the slabs of a connection that has got has bytes, and
// reports whether it may have more.
func (m *Memory) reserveSlabs(n, has int) bool {
	if !m.shared {
		return m.reserve(n)
	}
	return m.reserveBelow(m.max-m.max/ringsPart, int64(n), slabsPart*int64(has+n))
}

// reserveBelow takes n bytes of what a bound has, and reports whether there were so many,
// and so many more to leave.
func (m *Memory) reserveBelow(bound, n, leave int64) bool {
	for {
		used := m.used.Load()
		if bound-used-n < leave {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			counters.memory.Add(n)
			return true
		}
	}
}

// give gives n bytes back.
func (m *Memory) unreserve(n int) {
	m.used.Add(-int64(n))
	counters.memory.Add(-int64(n))
}

var errMemory = errors.New("as much shared memory is used as may be: see MaxSharedMemory")
