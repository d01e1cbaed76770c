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
type arena struct {
	mem    []byte
	memory *Memory        // that slabs are taken from
	give   func(b []byte) // has the system take the pages of b back
	drop   func()         // frees mem

	// Guarded by mu.
	mu     sync.Mutex
	next   int // where what is cut into slabs ends
	most   int // and has ended since pages were given back, at most: what is taken of memory
	free   [mostSlab - leastSlab + 1][]int
	out    map[int]int // classes of those that are handed out, by their places
	held   int         // how many are being written
	closed bool
	unused *time.Timer // calls trim; nil before anything was given back
}

// slabsLast is how long slabs keep their pages after the last was given back: a
// page that is new costs more than copying to it does.
const slabsLast = 5 * time.Second

// The lengths of slabs, as powers of two.
const (
	leastSlab = 16 // 64 KiB
	mostSlab  = 24 // 16 MiB
)

func newArena(mem []byte, memory *Memory, give func([]byte), drop func()) *arena {
	return &arena{mem: mem, memory: memory, give: give, drop: drop, out: make(map[int]int)}
}

// take returns a slab with room for n bytes, which the caller writes and then
// gives to wrote; false where there is none.
func (a *arena) take(n int) (b []byte, at int, ok bool) {
	class := max(bits.Len(uint(n-1)), leastSlab)
	if n <= 0 || class > mostSlab {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, 0, false
	}
	at, got, ok := a.find(class)
	if !ok {
		return nil, 0, false
	}
	a.out[at] = got
	a.held++
	return a.mem[at : at : at+1<<class], at, true
}

// find returns a free slab of class at least. mu is held.
func (a *arena) find(class int) (at, got int, ok bool) {
	if list := &a.free[class-leastSlab]; len(*list) > 0 {
		return pop(list), class, true
	}
	if size := 1 << class; size <= len(a.mem)-a.next && a.reach(a.next+size) {
		at = a.next
		a.next += size
		return at, class, true
	}
	for got = class + 1; got <= mostSlab; got++ {
		if list := &a.free[got-leastSlab]; len(*list) > 0 {
			return pop(list), got, true
		}
	}
	return 0, 0, false
}

// reach takes memory for slabs that end at end, and reports whether there is as
// much. mu is held.
func (a *arena) reach(end int) bool {
	if end <= a.most {
		return true
	}
	if !a.memory.take(end - a.most) {
		return false
	}
	a.most = end
	return true
}

func pop(list *[]int) int {
	last := len(*list) - 1
	at := (*list)[last]
	*list = (*list)[:last]
	return at
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
		a.free[class-leastSlab] = append(a.free[class-leastSlab], at)
		return nil
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
	return nil
}

// trim gives the pages of slabs back, if none is used.
func (a *arena) trim() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || len(a.out) > 0 {
		return
	}
	a.give(a.mem[:a.most])
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

// dropUnused frees the memory of an arena that is closed, if it is not used. mu
// is held.
func (a *arena) dropUnused() {
	if a.closed && a.held == 0 && a.drop != nil {
		a.drop()
		a.drop = nil
		a.memory.give(a.most)
	}
}
