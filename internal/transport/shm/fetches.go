package shm

import (
	"fmt"
	"net"
	"sync"
)

// A fetching reads the messages that the peer has put in its slabs. It keeps the slabs
// while a message is unread, also after the connection has ended: a message that has
// arrived can still be received.
//
// A message is read only while the peer has allocated at least as many pages as all its
// unread messages need. Two unread messages must not overlap, so that one page cannot pay
// for both. A place that the peer never wrote to fails this check, or reads as zeros that
// the peer has paid for with other pages.
//
// While the connection is open, the slabs count as the peer's memory. After its end the
// peer does not use them any more, so what is kept counts as this side's. If this side's
// Memory has no room for them, they are closed at once. reading.go says how slabs are read.
type fetching struct {
	slabs  peerSlabs
	memory *Memory // this side's

	mu          sync.Mutex
	held        map[int]int // lengths of unread messages, by offset
	bytes       int         // the sum of these lengths
	used        units       // the pieces of slabs that they occupy
	closed      bool
	reserved    int // from memory, when the connection ended
	slabsClosed bool
	reading
}

// peerSlabs are the system calls that a fetching makes. read and close may be called
// concurrently.
type peerSlabs interface {
	read(b []byte, at int) error
	mapAll() []byte        // maps the slabs for reading; nil if that fails
	present(b []byte) bool // whether all pages of b, a part of the mapping, are in memory
	size() int             // allocated bytes of the file that the slabs are in
	close()                // unmaps the slabs as well
}

// hold keeps the n bytes of a message at offset at until release is called.
func (f *fetching) hold(at, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return net.ErrClosed
	}
	if !f.used.mark(at, n) {
		return fmt.Errorf("%w: its message of %d bytes at %d is where another is", errBroken, n, at)
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

// checkPages returns an error if the peer has allocated less memory than its unread
// messages need: then none may be read. there returns what the peer has allocated, in
// bytes.
func (f *fetching) checkPages(there func() int) error {
	f.mu.Lock()
	bytes := f.bytes
	f.mu.Unlock()
	if n := there(); n < bytes {
		return fmt.Errorf("%w: %d bytes of memory are there for its messages of %d", errBroken, n, bytes)
	}
	return nil
}

// units are a bitmap of pieces of slabs, with a bit for each partAlign bytes.
type units [maxSlabs / partAlign / 64]uint64

// markMore marks the pieces of n bytes at offset at, and returns how many were not marked.
func (u *units) markMore(at, n int) (more int) {
	for i := at / partAlign; i < (at+n+partAlign-1)/partAlign; i++ {
		if u[i/64]>>(i%64)&1 == 0 {
			u[i/64] |= 1 << (i % 64)
			more++
		}
	}
	return more
}

// mark marks the pieces of n bytes at offset at, and reports false if one is marked
// already.
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

// clear clears the pieces of n bytes at offset at.
func (u *units) clear(at, n int) {
	for i := at / partAlign; i < (at+n+partAlign-1)/partAlign; i++ {
		u[i/64] &^= 1 << (i % 64)
	}
}

// close ends the connection's use of the slabs. Unread messages stay readable if memory has
// room for them.
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

// closeSlabs closes the slabs, once. The caller holds mu.
func (f *fetching) closeSlabs() {
	if f.slabsClosed {
		return
	}
	f.slabsClosed = true
	f.freeUnread()
}
