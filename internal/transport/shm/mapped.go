package shm

import (
	"fmt"
	"runtime/debug"
)

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
