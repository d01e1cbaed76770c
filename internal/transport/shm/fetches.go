package shm

import (
	"fmt"
	"net"
	"sync"
)

// A fetching reads what the peer has put in its slabs, and keeps them while there is
// something to read: also when the connection has ended, as a message that has
// arrived is there to be received.
//
// Slabs are read by a system call, never through a mapping. Reading a page that the
// peer has not written, or has taken away again, then takes no memory, and where
// memory is short it fails with an error instead of a signal that ends the process.
//
// A message is read only while the peer has allocated at least as many pages as all
// its unread messages need. Two unread messages must not overlap, so that one page
// cannot pay for both. A place that the peer never wrote to fails this check, or
// reads as zeros that the peer has paid for with other pages.
//
// While the peer lives its slabs are its own memory. When the connection has ended
// nobody else may have them any more, so that what is kept of them counts as this
// side's. Where there is no room for that they go at once.
type fetching struct {
	slabs  peerSlabs
	memory *Memory // of this side

	mu          sync.Mutex
	held        map[int]int // the lengths of messages to read, by their places
	bytes       int         // that they come to
	used        units       // that they take
	closed      bool
	reserved    int // what was taken of memory when the connection ended
	slabsClosed bool
}

// peerSlabs are how a fetching deals with the system. read and close may be called
// at a time.
type peerSlabs interface {
	read(b []byte, at int) error
	size() int // of what is there of them, in bytes
	close()
}

// hold keeps a message of n bytes that is at at until the caller calls release.
func (f *fetching) hold(at, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return net.ErrClosed
	}
	if at%partAlign != 0 || !f.used.mark(at, n) {
		return fmt.Errorf("%w: its message of %d bytes at %d is where it must not be, or another is", errBroken, n, at)
	}
	if f.held == nil {
		f.held = make(map[int]int)
	}
	f.held[at] = n
	f.bytes += n
	return nil
}

func (f *fetching) release(at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.held[at]
	delete(f.held, at)
	f.bytes -= n
	f.used.clear(at, n)
	if f.closed && len(f.held) == 0 {
		f.closeSlabs()
	}
}

// checkPages returns why nothing must be read: there is less of the peer's memory than
// its messages come to.
func (f *fetching) checkPages(there func() int) error {
	f.mu.Lock()
	bytes := f.bytes
	f.mu.Unlock()
	if n := there(); n < bytes {
		return fmt.Errorf("%w: %d bytes of memory are there for its messages of %d", errBroken, n, bytes)
	}
	return nil
}

// units are which pieces of slabs are taken, a bit for each partAlign bytes.
type units [maxSlabs / partAlign / 64]uint64

// take takes those of n bytes from at on, unless one is taken.
func (u *units) mark(at, n int) bool {
	first, end := at/partAlign, (at+n+partAlign-1)/partAlign
	for i := first; i < end; i++ {
		if u[i/64]>>(i%64)&1 != 0 {
			return false
		}
	}
	for i := first; i < end; i++ {
		u[i/64] |= 1 << (i % 64)
	}
	return true
}

// clear gives them back.
func (u *units) clear(at, n int) {
	for i := at / partAlign; i < (at+n+partAlign-1)/partAlign; i++ {
		u[i/64] &^= 1 << (i % 64)
	}
}

// close takes in that the connection has ended.
func (f *fetching) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if len(f.held) > 0 {
		if n := f.slabs.size(); f.memory.reserve(n) {
			f.reserved = n
			return
		}
	}
	f.closeSlabs()
}

// closeSlabs gives the slabs back. mu is held.
func (f *fetching) closeSlabs() {
	if f.slabsClosed {
		return
	}
	f.slabsClosed = true
	f.slabs.close()
	f.memory.unreserve(f.reserved)
	f.reserved = 0
}
