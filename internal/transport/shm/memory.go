package shm

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
)

// Memory bounds the bytes that this side reserves for the rings and slabs of several
// connections together. It is safe for concurrent use.
//
// If connections of different peers share it, a peer that never frees its slabs must not take all
// of it. Slabs leave an eighth of it to rings. The slabs of one connection take at most a quarter
// of the bytes that remain for the others. So the more peers hold slabs, the less each of them
// gets, and there is always something left for one more.
//
// It also bounds the bytes of peers' slabs that count as this side's memory, to a quarter of the
// bound: see mappedSlabs.
type Memory struct {
	max    int64
	shared bool // by connections of different peers
	used   atomic.Int64
	read   atomic.Int64
	kept   atomic.Int64

	mu    sync.Mutex
	freed chan struct{} // closed when bytes are returned; nil if nobody waits for bytes
}

const (
	ringsPart = 8 // one part in ringsPart is only for rings
	slabsPart = 4 // slabsPart times a connection's slabs must remain for the others
	readsPart = 4 // peers' slabs may cost one part in readsPart more
)

// NewMemory returns a bound of the given number of bytes. shared says that the connections have
// different peers, each of which gets a share.
func NewMemory(bytes int64, shared bool) *Memory { return &Memory{max: bytes, shared: shared} }

// reserveRings reserves n bytes for the rings of a new connection, and reports whether it could.
// If all connections have one peer, it succeeds if the bound is enough for one connection: older
// connections drain, and must not block their replacement.
func (m *Memory) reserveRings(n int) bool {
	if m.shared || int64(n) > m.max {
		return m.reserve(n)
	}
	return m.reserveBelow(math.MaxInt64, int64(n), 0)
}

// reserve reserves n bytes, and reports whether there were enough.
func (m *Memory) reserve(n int) bool { return m.reserveBelow(m.max, int64(n), 0) }

// reserveSlabs reserves n more bytes for the slabs of a connection, and reports whether it could.
// The parameter has is the number of bytes that these slabs have already.
func (m *Memory) reserveSlabs(n, has int) bool {
	if !m.shared {
		return m.reserve(n)
	}
	return m.reserveBelow(m.max-m.max/ringsPart, int64(n), slabsPart*int64(has+n))
}

// reserveRead reserves n more bytes of a peer's slabs, and reports whether there were enough. The
// parameter has is the number of bytes that this side has already reserved for that peer's slabs.
func (m *Memory) reserveRead(n, has int) bool {
	leave := int64(0)
	if m.shared {
		leave = slabsPart * int64(has+n)
	}
	return reserveOf(&m.read, m.max/readsPart, int64(n), leave)
}

// unreserveRead returns n bytes of a peer's slabs.
func (m *Memory) unreserveRead(n int) { m.read.Add(-int64(n)) }

// reserveBelow reserves n bytes if bound minus the bytes then in use is at least leave. It reports
// whether it did.
func (m *Memory) reserveBelow(bound, n, leave int64) bool {
	ok := reserveOf(&m.used, bound, n, leave)
	if ok {
		counters.Shm.Bytes.Add(n)
	}
	return ok
}

// reserveOf adds n to used if bound minus the sum is at least leave. It reports whether it did.
func reserveOf(used *atomic.Int64, bound, n, leave int64) bool {
	for {
		u := used.Load()
		if bound-u-n < leave {
			return false
		}
		if used.CompareAndSwap(u, u+n) {
			return true
		}
	}
}

// unreserve returns n bytes.
func (m *Memory) unreserve(n int) {
	m.used.Add(-int64(n))
	counters.Shm.Bytes.Add(-int64(n))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
}

// more returns a channel that is closed when bytes are returned.
func (m *Memory) more() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed == nil {
		m.freed = make(chan struct{})
	}
	return m.freed
}

// reserveKept reserves n bytes to keep a message whose connection has ended. If all connections
// have one peer, such messages have a bound for themselves: the new connection takes nothing from
// them.
func (m *Memory) reserveKept(n int) error {
	used, option := &m.used, "MaxSharedMemory"
	if !m.shared {
		used, option = &m.kept, "WithMaxSharedMemory"
	}
	if !reserveOf(used, m.max, int64(n), 0) {
		return fmt.Errorf("%w: the connection has ended, and of the %d bytes that %s allows %d are in use:"+
			" too many to keep a message of %d; allow more, or receive messages sooner",
			link.ErrExhausted, m.max, option, used.Load(), n)
	}
	counters.Shm.Bytes.Add(int64(n))
	return nil
}

// unreserveKept returns n bytes that reserveKept has reserved.
func (m *Memory) unreserveKept(n int) {
	if m.shared {
		m.unreserve(n)
		return
	}
	m.kept.Add(-int64(n))
	counters.Shm.Bytes.Add(-int64(n))
}

// errMemory is the error of a connection for which the bound has no room.
var errMemory = counters.NoMemory.New("as much shared memory is used as may be: see MaxSharedMemory")
