package shm

import (
	"fmt"
	"math/bits"
	"sync"
	"time"
)

// An arena hands out slabs of a segment: places for messages that are too large
// to go through a ring. The peer reads what is in them, and says when it has.
// What is known of them is in ordinary memory, where no peer can write.
//
// Slabs come in powers of two, and are cut as they are asked for, from the
// beginning again when nothing is used any more. What was given back last is handed
// out first: its pages are there, and in the processors' caches.
//
// Pages are allocated before a slab is handed out: where there are none the slab is
// not there, while a write to it would fail with a signal that ends the process.
type arena struct {
	mem    []byte
	memory *Memory // that slabs are taken from
	pages  pages

	growMu sync.Mutex // held by whoever allocates pages; locked before mu

	// Guarded by mu.
	mu           sync.Mutex
	carved       int // where what is cut into slabs ends
	paged        int // where what is allocated ends, all of which is taken of memory
	freeSlabs    [maxSlab - minSlab + 1][]int
	allocated    map[int]int // classes of those that are handed out, by their places
	beingWritten int         // how many are being written
	closed       bool
	noPagesAt    time.Time   // when there were no pages last
	trimTimer    *time.Timer // calls trim; nil before anything was given back
}

// pages are how an arena deals with the system.
type pages interface {
	allocate(at, n int) error // pages of its memory
	free(at, n int)           // them back
	unmap()                   // all of its memory
}

// slabIdleTimeout is how long slabs keep their pages after the last was given back: a
// page that is new costs more than copying to it does.
const slabIdleTimeout = 5 * time.Second

// The lengths of slabs, as powers of two.
const (
	minSlab = 16 // 64 KiB
	maxSlab = 24 // 16 MiB
)

func newArena(mem []byte, memory *Memory, pages pages) *arena {
	return &arena{mem: mem, memory: memory, pages: pages, allocated: make(map[int]int)}
}

// take returns a slab with room for n bytes, which the caller writes and then
// gives to wrote; false where there is none.
func (a *arena) allocate(n int) (b []byte, at int, ok bool) {
	class := max(bits.Len(uint(n-1)), minSlab)
	if n <= 0 || class > maxSlab {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.allocateReady(class); !ok {
		a.mu.Unlock()
		at, ok = a.allocateNew(class)
		a.mu.Lock()
	}
	for got := class + 1; !ok && got <= maxSlab; got++ {
		at, ok = a.reuse(got)
	}
	if !ok {
		return nil, 0, false
	}
	return a.mem[at : at : at+1<<class], at, true
}

// allocateReady hands out a slab for which no pages have to be allocated. mu is held.
func (a *arena) allocateReady(class int) (at int, ok bool) {
	if at, ok = a.reuse(class); ok {
		return at, true
	}
	if a.closed || a.carved+1<<class > a.paged {
		return 0, false
	}
	return a.carve(class), true
}

// reuse hands out a slab that was given back. mu is held.
func (a *arena) reuse(class int) (at int, ok bool) {
	list := &a.freeSlabs[class-minSlab]
	if len(*list) == 0 || a.closed {
		return 0, false
	}
	at = pop(list)
	a.allocated[at] = class
	a.beingWritten++
	return at, true
}

// carve hands out what comes next. mu is held.
func (a *arena) carve(class int) (at int) {
	at = a.carved
	a.carved += 1 << class
	a.allocated[at] = class
	a.beingWritten++
	return at
}

// allocateNew hands out a slab for which pages are allocated. mu is free meanwhile, as that
// takes a while: what is cut here is out, so that nobody else cuts there or trims.
func (a *arena) allocateNew(class int) (at int, ok bool) {
	a.growMu.Lock()
	defer a.growMu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.allocateReady(class); ok { // of what somebody else has allocated
		return at, true
	}
	from, end := a.paged, a.carved+1<<class
	if a.closed || end > len(a.mem) || time.Since(a.noPagesAt) < slabIdleTimeout || !a.memory.reserveSlabs(end-from, from) {
		return 0, false
	}
	at = a.carve(class)
	a.mu.Unlock()
	err := a.pages.allocate(from, end-from)
	a.mu.Lock()
	if err != nil {
		a.noPagesAt = time.Now()
		a.memory.unreserve(end - from)
		a.carved = at
		a.beingWritten--
		delete(a.allocated, at)
		a.resetIfUnused()
		a.unmapIfUnused()
		return 0, false
	}
	a.paged = end
	return at, true
}

func pop(list *[]int) int {
	last := len(*list) - 1
	at := (*list)[last]
	*list = (*list)[:last]
	return at
}

// excessPages returns how much of a file of a size is there beside the arena's pages.
func (a *arena) excessPages(size func() int) int {
	a.mu.Lock() // so that pages are not given back meanwhile
	defer a.mu.Unlock()
	return size() - a.paged
}

// doneWriting takes in that nobody writes to a slab any more that take has returned.
func (a *arena) doneWriting() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beingWritten--
	a.unmapIfUnused()
}

// free takes a slab back, which the peer has read, or is not told of.
func (a *arena) free(at int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	class, ok := a.allocated[at]
	if !ok {
		return fmt.Errorf("%w: it gives back the slab at %d, which it did not have", errBroken, at)
	}
	delete(a.allocated, at)
	if len(a.allocated) > 0 {
		a.freeSlabs[class-minSlab] = append(a.freeSlabs[class-minSlab], at)
	}
	a.resetIfUnused()
	return nil
}

// resetIfUnused takes in that a slab is not out any more. mu is held.
func (a *arena) resetIfUnused() {
	if len(a.allocated) > 0 {
		return
	}
	// Nothing is used: slabs are cut anew.
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

// trim gives the pages of slabs back, if none is used.
func (a *arena) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.allocated) > 0 {
		return
	}
	a.pages.free(0, a.paged)
	a.memory.unreserve(a.paged)
	a.paged = 0
}

// close frees the memory once nobody writes to it.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.trimTimer != nil {
		a.trimTimer.Stop()
	}
	a.unmapIfUnused()
}

// unmapIfUnused unmaps a closed arena that nothing holds. The pages live on while the
// peer, which might not have read them yet, has the file open. mu is held.
func (a *arena) unmapIfUnused() {
	if a.closed && a.beingWritten == 0 && a.pages != nil {
		a.pages.unmap()
		a.pages = nil
		a.memory.unreserve(a.paged)
	}
}
