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

	cutting sync.Mutex // held by whoever allocates pages; locked before mu

	// Guarded by mu.
	mu     sync.Mutex
	next   int // where what is cut into slabs ends
	most   int // where what is allocated ends, all of which is taken of memory
	free   [maxSlab - minSlab + 1][]int
	out    map[int]int // classes of those that are handed out, by their places
	held   int         // how many are being written
	closed bool
	failed time.Time   // when there were no pages last
	unused *time.Timer // calls trim; nil before anything was given back
}

// pages are how an arena deals with the system.
type pages interface {
	allocate(at, n int) error // pages of its memory
	give(at, n int)           // them back
	drop()                    // all of its memory
}

// slabsLast is how long slabs keep their pages after the last was given back: a
// page that is new costs more than copying to it does.
const slabsLast = 5 * time.Second

// The lengths of slabs, as powers of two.
const (
	minSlab = 16 // 64 KiB
	maxSlab = 24 // 16 MiB
)

func newArena(mem []byte, memory *Memory, pages pages) *arena {
	return &arena{mem: mem, memory: memory, pages: pages, out: make(map[int]int)}
}

// take returns a slab with room for n bytes, which the caller writes and then
// gives to wrote; false where there is none.
func (a *arena) take(n int) (b []byte, at int, ok bool) {
	class := max(bits.Len(uint(n-1)), minSlab)
	if n <= 0 || class > maxSlab {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.find(class); !ok {
		a.mu.Unlock()
		at, ok = a.cut(class)
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

// find hands out a slab for which no pages have to be allocated. mu is held.
func (a *arena) find(class int) (at int, ok bool) {
	if at, ok = a.reuse(class); ok {
		return at, true
	}
	if a.closed || a.next+1<<class > a.most {
		return 0, false
	}
	return a.handOut(class), true
}

// reuse hands out a slab that was given back. mu is held.
func (a *arena) reuse(class int) (at int, ok bool) {
	list := &a.free[class-minSlab]
	if len(*list) == 0 || a.closed {
		return 0, false
	}
	at = pop(list)
	a.out[at] = class
	a.held++
	return at, true
}

// handOut hands out what comes next. mu is held.
func (a *arena) handOut(class int) (at int) {
	at = a.next
	a.next += 1 << class
	a.out[at] = class
	a.held++
	return at
}

// cut hands out a slab for which pages are allocated. mu is free meanwhile, as that
// takes a while: what is cut here is out, so that nobody else cuts there or trims.
func (a *arena) cut(class int) (at int, ok bool) {
	a.cutting.Lock()
	defer a.cutting.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok = a.find(class); ok { // of what somebody else has allocated
		return at, true
	}
	from, end := a.most, a.next+1<<class
	if a.closed || end > len(a.mem) || time.Since(a.failed) < slabsLast || !a.memory.takeSlabs(end-from, from) {
		return 0, false
	}
	at = a.handOut(class)
	a.mu.Unlock()
	err := a.pages.allocate(from, end-from)
	a.mu.Lock()
	if err != nil {
		a.failed = time.Now()
		a.memory.give(end - from)
		a.next = at
		a.held--
		delete(a.out, at)
		a.gaveBack()
		a.dropUnused()
		return 0, false
	}
	a.most = end
	return at, true
}

func pop(list *[]int) int {
	last := len(*list) - 1
	at := (*list)[last]
	*list = (*list)[:last]
	return at
}

// beside returns how much of a file of a size is there beside the arena's pages.
func (a *arena) beside(size func() int) int {
	a.mu.Lock() // so that pages are not given back meanwhile
	defer a.mu.Unlock()
	return size() - a.most
}

// wrote takes in that nobody writes to a slab any more that take has returned.
func (a *arena) wrote() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held--
	a.dropUnused()
}

// back takes a slab back, which the peer has read, or is not told of.
func (a *arena) back(at int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	class, ok := a.out[at]
	if !ok {
		return fmt.Errorf("%w: it gives back the slab at %d, which it did not have", errBroken, at)
	}
	delete(a.out, at)
	if len(a.out) > 0 {
		a.free[class-minSlab] = append(a.free[class-minSlab], at)
	}
	a.gaveBack()
	return nil
}

// gaveBack takes in that a slab is not out any more. mu is held.
func (a *arena) gaveBack() {
	if len(a.out) > 0 {
		return
	}
	// Nothing is used: slabs are cut anew.
	a.next = 0
	for i := range a.free {
		a.free[i] = a.free[i][:0]
	}
	switch {
	case a.closed:
	case a.unused == nil:
		a.unused = time.AfterFunc(slabsLast, a.trim)
	default:
		a.unused.Reset(slabsLast)
	}
}

// trim gives the pages of slabs back, if none is used.
func (a *arena) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.out) > 0 {
		return
	}
	a.pages.give(0, a.most)
	a.memory.give(a.most)
	a.most = 0
}

// close frees the memory once nobody writes to it.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.unused != nil {
		a.unused.Stop()
	}
	a.dropUnused()
}

// dropUnused unmaps a closed arena that nothing holds. The pages live on while the
// peer, which might not have read them yet, has the file open. mu is held.
func (a *arena) dropUnused() {
	if a.closed && a.held == 0 && a.pages != nil {
		a.pages.drop()
		a.pages = nil
		a.memory.give(a.most)
	}
}
