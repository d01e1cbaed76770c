package shm

import (
	"fmt"
	"runtime/debug"

	"github.com/nearcall/nearcall/internal/bulk"
)

// How slabs are read.
//
// A peer's slabs are mapped when the first message is read: to copy from a mapping takes less than
// half of the time that pread takes. But to read a page there that does not exist allocates it, and to
// read one that was swapped out holds up the garbage collector. So a message of which not all pages
// are in memory is read by pread, which does neither.
//
// A peer can free pages between the look at them and the copy. Then they are allocated, and stay this
// side's until the peer or the file is gone. So the pieces that were ever read through the mapping
// are reserved from this side's Memory. If it has no room for another, pread reads the message. And if
// a page cannot be allocated, because memory is short, the SIGBUS becomes an error of the read.
//
// Invariant: the slabs are unmapped when they were closed and nobody reads.
type reading struct {
	mapped  []byte // the peer's slabs; nil before the first read, and if they cannot be mapped
	tried   bool   // to map them
	touched units  // the pieces that are reserved
	paid    int    // bytes of touched
	readers int    // that copy from mapped
}

// read fills b from offset at.
func (f *fetching) read(b []byte, at int) error {
	from := f.startReading(at, len(b))
	if from == nil {
		return f.slabs.read(b, at)
	}
	var err error
	if f.slabs.present(from) {
		err = copyMapped(b, from)
	} else {
		err = f.slabs.read(b, at)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers--
	f.freeUnread()
	return err
}

// startReading returns the n bytes at offset at of the mapping, or nil if they have to be read in
// another way. If it does not return nil, readers counts the caller.
func (f *fetching) startReading(at, n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slabsClosed {
		return nil
	}
	if !f.tried {
		f.mapped, f.tried = f.slabs.mapAll(), true
	}
	if f.mapped == nil {
		return nil
	}
	if !f.closed { // otherwise all of the file is reserved
		after := f.touched
		if more := partAlign * after.markMore(at, n); more > 0 {
			if !f.memory.reserveRead(more, f.paid) {
				return nil
			}
			f.touched = after
			f.paid += more
		}
	}
	f.readers++
	return f.mapped[at : at+n]
}

// freeUnread frees the slabs if they were closed and nobody reads. The caller holds mu.
func (f *fetching) freeUnread() {
	if !f.slabsClosed || f.readers > 0 {
		return
	}
	f.slabs.close()
	f.memory.unreserve(f.reserved)
	f.memory.unreserveRead(f.paid)
	f.reserved, f.paid = 0, 0
}

// copyMapped copies from, which is in a mapping, to b. It fails if a page of it cannot be had.
func copyMapped(b, from []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}: // only from is not ordinary memory
			err = fmt.Errorf("there is no memory for the peer's pages: %w", r)
		default:
			panic(r)
		}
	}()
	bulk.Copy(b, from)
	return nil
}
