package shm

import (
	"fmt"
	"math/bits"
	"sync"
	"time"
	"unsafe"
)

// An arena allocates slabs: places for messages that are too large to go through a ring. The peer
// reads a slab and tells this side when it has done so. All bookkeeping is in ordinary memory,
// which no peer can write.
//
// Slabs have power-of-two sizes. They are carved off in address order, and from the start again
// once no slab is allocated. The slab that was freed last is reused first: its pages exist, and
// are likely in the processor's caches.
//
// A slab's pages are allocated before the slab is used. If the system has no pages, allocate
// fails; writing to a page that cannot be allocated would kill the process with SIGBUS.
type arena struct {
	mem    []byte
	memory *Memory // that pages are reserved from
	pages  pages

	growMu sync.Mutex // serializes page allocation; locked before mu

	// Guarded by mu.
	mu           sync.Mutex
	carved       int // where the next slab is carved
	paged        int // where allocated pages end; all of them are reserved from memory
	freeSlabs    [maxSlab - minSlab + 1][]int
	allocated    map[int]slab // the slabs in use, by offset
	messages     map[int]int  // the slabs of messages that the peer may return, by the messages' offsets
	beingWritten int          // slabs that a caller still writes to; trim counts as one while it frees pages
	closed       bool
	trimming     bool        // trim frees the pages: no slab can be allocated
	noPagesAt    time.Time   // when the system last had no pages
	trimTimer    *time.Timer // calls trim; nil before the arena was first empty
}

// A slab is in use by this side, by the peer or, if it is a draft, by both.
type slab struct {
	class   int  // its size, as a power of two
	written bool // this side writes there
	sent    bool // the peer may return a message in it: see messages
}

// pages are the system calls that an arena makes.
type pages interface {
	allocate(at, n int) error // allocates the pages of n bytes
	free()                    // returns all pages to the system; a peer can delay it
	unmap()                   // unmaps the whole arena
}

// trims has a token for each arena that frees its pages. A peer can delay that, and each delayed
// arena takes a thread.
var trims = make(chan struct{}, 32)

// slabIdleTimeout is how long an empty arena keeps its pages: allocating a page costs more
// than copying to it.
const slabIdleTimeout = 5 * time.Second

// The sizes of slabs, as powers of two.
const (
	minSlab = 16 // 64 KiB
	maxSlab = 24 // 16 MiB
)

func newArena(mem []byte, memory *Memory, pages pages) *arena {
	return &arena{mem: mem, memory: memory, pages: pages, allocated: make(map[int]slab), messages: make(map[int]int)}
}

// allocate returns a slab with room for n bytes, as an empty slice and its offset. ok is false if
// there is none. The caller fills the slab and then calls sendAll, or done. Before that the peer
// cannot return a message in it.
func (a *arena) allocate(n int) (b []byte, at int, ok bool) {
	class := max(bits.Len(uint(n-1)), minSlab)
	if n <= 0 || class > maxSlab {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.allocateReadyLocked(class); !ok {
		a.mu.Unlock()
		at, ok = a.allocateNew(class)
		a.mu.Lock()
	}
	for got := class + 1; !ok && got <= maxSlab; got++ {
		at, ok = a.reuseLocked(got)
	}
	if !ok {
		return nil, 0, false
	}
	return a.mem[at : at : at+1<<class], at, true
}

// allocateReadyLocked returns a slab that needs no new pages. The caller holds mu.
func (a *arena) allocateReadyLocked(class int) (at int, ok bool) {
	if at, ok = a.reuseLocked(class); ok {
		return at, true
	}
	if a.closed || a.trimming || a.carved+1<<class > a.paged {
		return 0, false
	}
	return a.carveLocked(class), true
}

// reuseLocked returns a slab that was freed before. The caller holds mu.
func (a *arena) reuseLocked(class int) (at int, ok bool) {
	list := a.freeSlabs[class-minSlab]
	last := len(list) - 1
	if last < 0 || a.closed {
		return 0, false
	}
	at, a.freeSlabs[class-minSlab] = list[last], list[:last]
	a.writeLocked(at, class)
	return at, true
}

// carveLocked returns the next slab in address order. The caller holds mu.
func (a *arena) carveLocked(class int) (at int) {
	at = a.carved
	a.carved += 1 << class
	a.writeLocked(at, class)
	return at
}

// writeLocked records that this side writes to the slab at offset at, which was free. The caller holds
// mu.
func (a *arena) writeLocked(at, class int) {
	a.allocated[at] = slab{class: class, written: true}
	a.beingWritten++
}

// allocateNew returns a slab for which it allocates pages. It unlocks mu during the system call,
// which is slow. It carves the slab before it unlocks mu, so that no other goroutine carves the
// same bytes and trim does nothing.
func (a *arena) allocateNew(class int) (at int, ok bool) {
	a.growMu.Lock()
	defer a.growMu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.allocateReadyLocked(class); ok { // another goroutine allocated pages first
		return at, true
	}
	from, end := a.paged, a.carved+1<<class
	if a.closed || a.trimming || end > len(a.mem) || time.Since(a.noPagesAt) < slabIdleTimeout || !a.memory.reserveSlabs(end-from, from) {
		return 0, false
	}
	at = a.carveLocked(class)
	a.mu.Unlock()
	err := a.pages.allocate(from, end-from)
	a.mu.Lock()
	if err != nil {
		a.noPagesAt = time.Now()
		a.memory.unreserve(end - from)
		a.carved = at
		a.beingWritten--
		delete(a.allocated, at)
		a.resetIfUnusedLocked()
		a.unmapIfUnusedLocked()
		return 0, false
	}
	a.paged = end
	return at, true
}

// excessPages calls size, and returns how many of the bytes that size reports are not pages of this
// arena. While trim frees pages, this side does not know how many are left, so it subtracts none.
func (a *arena) excessPages(size func() int) int {
	a.mu.Lock() // so that trim does not begin between size and the subtraction
	defer a.mu.Unlock()
	if a.trimming {
		return size()
	}
	return size() - a.paged
}

// sendAll records that the caller of allocate has written a message to the beginning of its slab
// at offset at, and sends it.
func (a *arena) sendAll(at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.useLocked(at, false, true)
	a.messages[at] = at
	a.beingWritten--
	a.unmapIfUnusedLocked()
}

// done records that the caller of allocate no longer writes to its slab at offset at. A message
// that was sent from there belongs to the peer until free.
func (a *arena) done(at int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.useLocked(at, false, a.allocated[at].sent)
	a.beingWritten--
	a.unmapIfUnusedLocked()
}

// free records that the peer has read the message at offset at, or that the message was never
// sent.
func (a *arena) free(at int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	of, ok := a.messages[at]
	if !ok {
		return fmt.Errorf("%w: it returns the slab at %d, which it did not get", errBroken, at)
	}
	delete(a.messages, at)
	a.useLocked(of, a.allocated[of].written, false)
	return nil
}

// useLocked sets the users of the slab at offset at. Without users the slab is free. The
// caller holds mu.
func (a *arena) useLocked(at int, written, sent bool) {
	s := slab{class: a.allocated[at].class, written: written, sent: sent}
	if written || sent {
		a.allocated[at] = s
		return
	}
	delete(a.allocated, at)
	if len(a.allocated) > 0 {
		a.freeSlabs[s.class-minSlab] = append(a.freeSlabs[s.class-minSlab], at)
	}
	a.resetIfUnusedLocked()
}

// resetIfUnusedLocked starts carving from offset 0 again if no slab is allocated, and starts the
// timer of trim. The caller holds mu.
func (a *arena) resetIfUnusedLocked() {
	if len(a.allocated) > 0 {
		return
	}
	a.carved = 0
	for i := range a.freeSlabs {
		a.freeSlabs[i] = a.freeSlabs[i][:0]
	}
	switch {
	case a.closed:
	case a.trimTimer == nil:
		a.trimTimer = time.AfterFunc(slabIdleTimeout, a.trim)
	default:
		a.trimTimer.Reset(slabIdleTimeout)
	}
}

// trim returns all pages to the system if no slab is allocated. It unlocks mu for the system call,
// because a peer can delay that call. During the call no slab can be allocated; everything else
// goes on.
func (a *arena) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.trimming || len(a.allocated) > 0 {
		return
	}
	select {
	case trims <- struct{}{}:
	default: // try again later
		a.resetIfUnusedLocked()
		return
	}
	pages := a.pages
	a.trimming = true
	a.beingWritten++
	a.mu.Unlock()
	pages.free()
	<-trims
	a.mu.Lock()
	a.trimming = false
	a.beingWritten--
	a.memory.unreserve(a.paged)
	a.paged = 0
	a.unmapIfUnusedLocked()
}

// close unmaps the memory, at once or when the last writer is done.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.trimTimer != nil {
		a.trimTimer.Stop()
	}
	a.unmapIfUnusedLocked()
}

// unmapIfUnusedLocked unmaps a closed arena that nobody writes to. The pages live on while the peer,
// which might not have read them yet, has the file open. The caller holds mu.
func (a *arena) unmapIfUnusedLocked() {
	if a.closed && a.beingWritten == 0 && a.pages != nil {
		a.pages.unmap()
		a.pages = nil
		a.memory.unreserve(a.paged)
	}
}

// Drafts.
//
// A draft is a slab in which a user builds a message. The user gets the slab before the message
// exists. The message is any part of the slab, and is sent from there.
//
// Invariants:
//   - A draft is in use until the user has ended it and the peer has returned the message in it,
//     whichever comes last.
//   - In a draft there is at most one message that was sent and that the peer has not returned.
//   - The arena stays mapped until the user has ended the draft, also after it was closed.

// send records that the message b is sent, and returns its offset. ok is false if b is not in a
// slab that a caller of allocate writes to, if the peer has not returned another message in that
// slab, or if the arena is closed.
func (a *arena) send(b []byte) (at int, ok bool) {
	if len(b) == 0 || len(a.mem) == 0 {
		return 0, false
	}
	at = int(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&a.mem[0])))
	if at < 0 || at > len(a.mem)-len(b) {
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of, ok := a.draftAroundLocked(at, len(b))
	if !ok || a.allocated[of].sent || a.closed {
		return 0, false
	}
	a.useLocked(of, true, true)
	a.messages[at] = of
	return at, true
}

// draftAroundLocked returns the offset of the draft that contains the n bytes at offset at. The caller
// holds mu.
func (a *arena) draftAroundLocked(at, n int) (of int, ok bool) {
	for of = at &^ (1<<minSlab - 1); of >= 0; of -= 1 << minSlab {
		if s, ok := a.allocated[of]; ok {
			return of, s.written && at+n <= of+1<<s.class
		}
	}
	return 0, false
}
