package shm

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"sync"
)

// A fetching reads the messages that the peer has put in its slabs.
//
// A message is read only while the peer has allocated at least as many pages as all its
// unread messages need. Two unread messages must not overlap, so that one page cannot pay
// for both. A place that the peer never wrote to fails this check, or reads as zeros that
// the peer has paid for with other pages.
//
// A message that has arrived can still be received after the connection has ended. close copies
// the unread messages to this side's own memory and releases the file, which may be much larger
// than they are. The copies are reserved from this side's Memory. If that has no room for all,
// the latest messages are lost. mapped.go reads slabs.
type fetching struct {
	slabs  peerSlabs
	memory *Memory    // this side's
	there  func() int // returns how much of the file the peer has allocated, in bytes

	mu      sync.Mutex
	held    map[int]*arrival // unread messages, by offset
	arrived int              // messages so far
	bytes   int              // the sum of the sizes of unread messages
	used    units            // the pieces of slabs that they occupy
	closed  bool
	mappedSlabs
}

// An arrival is an unread message.
type arrival struct {
	at, size int
	number   int    // earlier messages have lower ones
	kept     []byte // the copy, after the end of the connection
	lost     error  // why there is no copy
}

// peerSlabs are the system calls that a fetching makes. read and close may run concurrently.
type peerSlabs interface {
	read(b []byte, at int) error
	mapAll() []byte        // maps the slabs for reading; nil if that fails
	present(b []byte) bool // whether all pages of b, a part of the mapping, are in memory
	close()                // unmaps the slabs, and releases the file
}

// hold keeps the n bytes of a message at offset at until release is called.
func (f *fetching) hold(at, n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return net.ErrClosed
	}
	used := f.used
	if all, more := used.mark(at, n); more < all {
		return fmt.Errorf("%w: its message of %d bytes at %d is where another is", errBroken, n, at)
	}
	f.used = used
	if f.held == nil {
		f.held = make(map[int]*arrival)
	}
	f.arrived++
	f.held[at] = &arrival{at: at, size: n, number: f.arrived}
	f.bytes += n
	return nil
}

func (f *fetching) release(at int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.held[at]
	delete(f.held, at)
	f.bytes -= m.size
	f.used.clear(at, m.size)
	if f.closed && m.lost == nil {
		f.memory.unreserveKept(m.size)
	}
}

// check returns an error if the message at offset at was lost, or if the peer has allocated less
// memory than its unread messages need: then no message may be read.
func (f *fetching) check(at int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed { // the pages were checked at the close
		return f.held[at].lost
	}
	return f.checkPages()
}

// checkPages returns an error if the peer has allocated less memory than its unread messages
// need. The caller holds mu, and the connection has not ended, so that the file is open.
func (f *fetching) checkPages() error {
	if n := max(f.there(), 0); n < f.bytes {
		return fmt.Errorf("%w: %d bytes of memory are there for its messages of %d", errBroken, n, f.bytes)
	}
	return nil
}

// fetch fills b with the message at offset at.
func (f *fetching) fetch(b []byte, at int) error {
	f.mu.Lock()
	m := f.held[at]
	kept, lost := m.kept, m.lost
	if kept == nil && lost == nil {
		f.readers++
		defer f.stopReading()
	}
	f.mu.Unlock()
	switch {
	case lost != nil:
		return lost
	case kept != nil:
		copy(b, kept)
		return nil
	}
	return f.read(b, at)
}

// close ends the connection's use of the slabs. They are closed once all unread messages for
// which memory has room are copied. close does not wait for that.
func (f *fetching) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	wrong := f.checkPages()
	f.closed = true
	all := make([]*arrival, 0, len(f.held))
	for _, m := range f.held {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *arrival) int { return cmp.Compare(a.number, b.number) })
	all = slices.DeleteFunc(all, func(m *arrival) bool {
		if m.lost = wrong; wrong == nil {
			m.lost = f.memory.reserveKept(m.size)
		}
		return m.lost != nil
	})
	f.readers++
	if len(all) == 0 {
		f.stopReadingLocked()
		return
	}
	go f.keep(all)
}

// keep copies messages for which memory is reserved. It counts as one of readers.
func (f *fetching) keep(all []*arrival) {
	defer f.stopReading()
	for _, m := range all {
		if !f.isHeld(m) {
			continue
		}
		b := make([]byte, m.size)
		err := f.read(b, m.at)
		f.mu.Lock()
		switch {
		case f.held[m.at] != m: // it was received in the meantime
		case err != nil:
			m.lost = err
			f.memory.unreserveKept(m.size)
		default:
			m.kept = b
		}
		f.mu.Unlock()
	}
}

// isHeld reports whether a message was not released yet.
func (f *fetching) isHeld(m *arrival) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[m.at] == m
}

// units are a bitmap of pieces of slabs, with a bit for each partAlign bytes.
type units [maxSlabs / partAlign / 64]uint64

// mark marks the pieces of n bytes at offset at. It returns how many there are, and how many of them
// were not marked.
func (u *units) mark(at, n int) (all, more int) {
	for i := at / partAlign; i < (at+n+partAlign-1)/partAlign; i++ {
		if u[i/64]>>(i%64)&1 == 0 {
			u[i/64] |= 1 << (i % 64)
			more++
		}
		all++
	}
	return all, more
}

// clear clears the pieces that contain the n bytes from offset at on.
func (u *units) clear(at, n int) {
	for i := at / partAlign; i < (at+n+partAlign-1)/partAlign; i++ {
		u[i/64] &^= 1 << (i % 64)
	}
}
