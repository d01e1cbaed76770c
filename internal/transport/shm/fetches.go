package shm

import (
	"cmp"
	"fmt"
	"net"
	"runtime/debug"
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
// the latest messages are lost.
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
	return f.checkPagesLocked()
}

// checkPagesLocked returns an error if the peer has allocated less memory than its unread messages
// need. The caller holds mu, and the connection has not ended, so that the file is open.
func (f *fetching) checkPagesLocked() error {
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
	wrong := f.checkPagesLocked()
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
		f.mu.Lock()
		held := f.held[m.at] == m // it was not released yet
		f.mu.Unlock()
		if !held {
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

// How slabs are read.
//
// A peer's slabs are mapped when the first message is read: a copy from a mapping takes less than
// half of the time of a pread. But reading a missing page through the mapping allocates it, and
// reading a page that was swapped out holds up the garbage collector. pread does neither, so it
// reads each message that is not completely in memory.
//
// A peer can free pages after this side has looked at them and before it copies. Then the copy
// allocates them, and this side pays for them until the peer ends or the file is closed. So all
// pieces that were ever read through the mapping are reserved from this side's Memory. If it has
// no room for another piece, pread reads the message. If a page cannot be allocated because
// memory is short, the SIGBUS becomes an error of the read.
//
// Invariant: the slabs are closed when the connection has ended and nobody reads.
type mappedSlabs struct {
	mapped  []byte // the peer's slabs; nil before the first read, and if they cannot be mapped
	tried   bool   // an attempt to map them was made
	touched units  // the pieces that are reserved
	paid    int    // the bytes of the pieces in touched
	readers int    // goroutines that read slabs
}

// read fills b from offset at of the slabs. The caller counts as one of readers.
func (f *fetching) read(b []byte, at int) error {
	if from := f.mapping(at, len(b)); from != nil && f.slabs.present(from) {
		return copyMapped(b, from)
	}
	return f.slabs.read(b, at)
}

// mapping returns the n bytes at offset at of the mapping, or nil if pread must read them.
func (f *fetching) mapping(at, n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.tried {
		f.mapped, f.tried = f.slabs.mapAll(), true
	}
	if f.mapped == nil {
		return nil
	}
	after := f.touched
	_, pieces := after.mark(at, n)
	if more := partAlign * pieces; more > 0 {
		if !f.memory.reserveRead(more, f.paid) {
			return nil
		}
		f.touched = after
		f.paid += more
	}
	return f.mapped[at : at+n]
}

// stopReading records that a reader has finished.
func (f *fetching) stopReading() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopReadingLocked()
}

// stopReadingLocked is stopReading for a caller that holds mu.
func (f *fetching) stopReadingLocked() {
	if f.readers--; f.closed && f.readers == 0 {
		f.slabs.close()
		f.memory.unreserveRead(f.paid)
	}
}

// copyMapped copies the bytes in from, which is part of a mapping, to b. It fails if a page of
// from cannot be allocated.
func copyMapped(b, from []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}: // the fault is in from: b is ordinary memory
			err = fmt.Errorf("there is no memory for the peer's pages: %w", r)
		default:
			panic(r)
		}
	}()
	copy(b, from)
	return nil
}
