package shm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// plenty is the Memory of tests that do not count bytes.
var plenty = NewMemory(1<<40, false)

// testPages count the pages of an arena.
type testPages struct {
	most      int // bytes that can be allocated
	allocated int // bytes
	given     int // bytes that were freed
	dropped   bool
	asked     int         // calls of allocate
	during    func(n int) // called during allocate
	freeing   func()      // called during free
}

var errPages = errors.New("there are no pages")

func (p *testPages) allocate(_, n int) error {
	p.asked++
	if p.during != nil {
		p.during(n)
	}
	if p.allocated+n > p.most {
		return errPages
	}
	p.allocated += n
	return nil
}

func (p *testPages) free() {
	if p.freeing != nil {
		p.freeing()
	}
	p.given += p.allocated
	p.allocated = 0
}

func (p *testPages) unmap() { p.dropped = true }

// counted returns an arena of n bytes, and its pages.
func counted(n int) (*arena, *testPages) {
	p := &testPages{most: n}
	return newArena(make([]byte, n), plenty, p), p
}

// taken allocates a slab, and writes nothing to it.
func taken(t *testing.T, a *arena, n int) (at int) {
	t.Helper()
	b, at, ok := a.allocate(n)
	if !ok || len(b) != 0 || cap(b) < n || at+cap(b) > len(a.mem) {
		t.Fatalf("a slab for %d bytes: %d of %d at %d, %v", n, len(b), cap(b), at, ok)
	}
	a.sendAll(at)
	return at
}

func TestTheSlabThatWasGivenBackLastIsTheNext(t *testing.T) {
	a, _ := counted(1 << 20)
	first, second := taken(t, a, 100_000), taken(t, a, 100_000)
	_ = taken(t, a, 1) // the arena is not reset while a slab is allocated
	for _, at := range []int{first, second} {
		if err := a.free(at); err != nil {
			t.Fatal(err)
		}
	}
	if at := taken(t, a, 70_000); at != second {
		t.Errorf("it is that at %d, not that at %d", at, second)
	}
	a.close()
}

func TestSlabsDoNotOverlapAndEnd(t *testing.T) {
	a, _ := counted(1 << 20)
	used := make([]bool, len(a.mem))
	for i, n := range []int{1, 1 << 16, 1<<16 + 1, 1 << 18} {
		b, at, ok := a.allocate(n)
		if !ok {
			t.Fatalf("there is no slab for %d bytes", n)
		}
		a.sendAll(at)
		for j := at; j < at+cap(b); j++ {
			if used[j] {
				t.Fatalf("the slab of number %d overlaps another at %d", i, j)
			}
			used[j] = true
		}
	}
	for n := range 10 {
		if _, at, ok := a.allocate(1 << 19); ok {
			a.sendAll(at)
		} else if n == 0 {
			t.Fatal("there was room for one more")
		} else {
			break
		}
	}
	if _, _, ok := a.allocate(1<<24 + 1); ok {
		t.Error("there is a slab for more than any has")
	}
	if _, _, ok := a.allocate(0); ok {
		t.Error("there is a slab for nothing")
	}
	a.close()
}

func TestThereIsNoSlabBesideOneThatHasAll(t *testing.T) {
	a, _ := counted(1 << 20)
	at := taken(t, a, 1<<20)
	if _, _, ok := a.allocate(1); ok {
		t.Fatal("there is room beside all of it")
	}
	if err := a.free(at); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, a, 1); got != at {
		t.Errorf("it is at %d", got)
	}
	a.close()
}

func TestASmallMessageTakesALargeSlabThatIsFree(t *testing.T) {
	a, _ := counted(1 << 20)
	large, rest := taken(t, a, 1<<19), taken(t, a, 1<<19)
	if err := a.free(large); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, a, 1); got != large {
		t.Errorf("it is at %d, beside that at %d", got, rest)
	}
	a.close()
}

// TestSlabsAreCutAnew: after many small slabs were in use and freed, large ones fit again.
func TestSlabsAreCutAnew(t *testing.T) {
	a, _ := counted(1 << 20)
	var all []int
	for range 16 {
		all = append(all, taken(t, a, 1<<16))
	}
	for _, at := range all {
		if err := a.free(at); err != nil {
			t.Fatal(err)
		}
	}
	taken(t, a, 1<<20)
	a.close()
}

func TestASlabThatIsNotOutCannotBeReturned(t *testing.T) {
	a, _ := counted(1 << 20)
	at := taken(t, a, 1)
	for _, wrong := range []int{at + 1, -1, 1 << 30} {
		if err := a.free(wrong); !errors.Is(err, errBroken) {
			t.Errorf("at %d: %v", wrong, err)
		}
	}
	if err := a.free(at); err != nil {
		t.Error(err)
	}
	if err := a.free(at); !errors.Is(err, errBroken) {
		t.Errorf("a second time: %v", err)
	}
	a.close()
}

func TestMemoryIsFreedWhenNobodyWritesToItAnyMore(t *testing.T) {
	a, pages := counted(1 << 20)
	_, at, ok := a.allocate(1)
	if !ok {
		t.Fatal("there is no slab")
	}
	a.close()
	if pages.dropped {
		t.Fatal("it is freed while somebody writes")
	}
	if _, _, ok := a.allocate(1); ok {
		t.Error("a closed arena has slabs")
	}
	a.sendAll(at)
	if !pages.dropped {
		t.Error("it is not freed")
	}
}

func TestPagesOfSlabsThatAreNotUsedGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, pages := counted(1 << 20)
		defer a.close()
		given := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return pages.given
		}
		kept, other := taken(t, a, 1<<17), taken(t, a, 1)
		if err := a.free(kept); err != nil {
			t.Fatal(err)
		}
		later := func() {
			synctest.Wait()
			<-time.After(slabIdleTimeout + 1)
			synctest.Wait()
		}
		if later(); given() != 0 {
			t.Errorf("%d bytes go back while a slab is out", given())
		}
		if err := a.free(other); err != nil {
			t.Fatal(err)
		}
		<-time.After(slabIdleTimeout - 1)
		if given() != 0 {
			t.Errorf("%d bytes go back before it is time", given())
		}
		if later(); given() != 1<<17+1<<16 {
			t.Errorf("%d bytes went back", given())
		}
		if at := taken(t, a, 1<<17); at != kept {
			t.Error("the slab is not used again")
		}
	})
}

func TestASlabIsAllocatedBeforeItIsHandedOut(t *testing.T) {
	a, pages := counted(1 << 20)
	defer a.close()
	for i, step := range []struct{ n, allocated int }{{100_000, 1 << 17}, {1, 1<<17 + 1<<16}, {1 << 18, 1<<18 + 1<<17 + 1<<16}} {
		if at := taken(t, a, step.n); pages.allocated != step.allocated || at+step.n > pages.allocated {
			t.Errorf("%d: %d bytes are allocated, for the slab at %d", i, pages.allocated, at)
		}
	}
}

// If there are no pages, allocate fails and reserves nothing. The arena waits before it
// asks the system again.
func TestWhereThereAreNoPagesThereIsNoSlab(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := NewMemory(1<<30, false)
		pages := &testPages{most: 1 << 17}
		a := newArena(make([]byte, 1<<20), memory, pages)
		defer a.close()
		none := func(n int) {
			t.Helper()
			if _, _, ok := a.allocate(n); ok {
				t.Errorf("there is a slab for %d bytes", n)
			}
		}
		first := taken(t, a, 1<<16)
		none(1 << 17)
		none(1 << 17)
		if pages.asked != 2 || memory.used.Load() != 1<<16 {
			t.Errorf("the system was asked %d times, and %d bytes are counted", pages.asked, memory.used.Load())
		}
		<-time.After(slabIdleTimeout)
		second := taken(t, a, 1<<16)
		if first == second || pages.asked != 3 {
			t.Errorf("slabs are at %d and %d, the system was asked %d times", first, second, pages.asked)
		}
		for _, at := range []int{first, second} {
			if err := a.free(at); err != nil {
				t.Error(err)
			}
		}
		pages.most = 0
		<-time.After(slabIdleTimeout + 1)
		synctest.Wait()
		none(1)     // its failure leaves no slab in use, so the arena is reset
		a.mu.Lock() // trim holds it while it frees pages
		allocated := pages.allocated
		a.mu.Unlock()
		if memory.used.Load() != 0 || allocated != 0 {
			t.Errorf("%d bytes are counted, %d are allocated", memory.used.Load(), allocated)
		}
		pages.most = 1 << 20
		<-time.After(slabIdleTimeout)
		taken(t, a, 1<<20)
	})
}

// While pages are allocated, other goroutines can free and allocate slabs, and close the
// arena.
func TestOthersGoOnWhilePagesAreAllocated(t *testing.T) {
	for name, fails := range map[string]bool{"there are pages": false, "there are none": true} {
		t.Run(name, func(t *testing.T) {
			memory := NewMemory(1<<30, false)
			pages := &testPages{most: 1 << 20}
			a := newArena(make([]byte, 1<<20), memory, pages)
			first := taken(t, a, 1<<16)
			pages.during = func(n int) {
				pages.during = nil
				if err := a.free(first); err != nil {
					t.Error(err)
				}
				if at := taken(t, a, 1); at != first {
					t.Errorf("the slab at %d is taken", at)
				}
				a.trim()
				a.close()
				if pages.dropped {
					t.Error("memory is gone that is being allocated")
				}
				if fails {
					pages.most = 0
				}
			}
			b, at, ok := a.allocate(1 << 17)
			if ok == fails || ok && (cap(b) != 1<<17 || at != 1<<16) {
				t.Errorf("%v, a slab of %d bytes at %d", ok, cap(b), at)
			}
			if ok {
				a.sendAll(at)
			}
			if !pages.dropped || memory.used.Load() != 0 {
				t.Errorf("after the end: %+v, %d bytes are counted", pages, memory.used.Load())
			}
		})
	}
}

// While trim frees pages, which a peer can delay, no slab can be allocated, but everything
// else works, and the arena can be closed.
func TestOthersGoOnWhilePagesGoBack(t *testing.T) {
	for name, closes := range map[string]bool{"it is closed": true, "it stays": false} {
		t.Run(name, func(t *testing.T) {
			memory := NewMemory(1<<30, false)
			pages := &testPages{most: 1 << 20}
			a := newArena(make([]byte, 1<<20), memory, pages)
			if err := a.free(taken(t, a, 1<<17)); err != nil {
				t.Fatal(err)
			}
			pages.freeing = func() {
				if _, _, ok := a.allocate(1); ok {
					t.Error("there is a slab whose pages go")
				}
				if got := a.excessPages(func() int { return 1 << 18 }); got != 1<<18 {
					t.Errorf("%d bytes are beside pages of which any number is left", got)
				}
				a.trim()
				if closes {
					a.close()
				}
				if pages.dropped || memory.used.Load() != 1<<17 {
					t.Errorf("before they are gone: %+v, %d bytes are counted", pages, memory.used.Load())
				}
			}
			a.trim()
			if pages.dropped != closes || pages.given != 1<<17 || memory.used.Load() != 0 {
				t.Errorf("after that: %+v, %d bytes are counted", pages, memory.used.Load())
			}
			if pages.freeing = nil; !closes {
				taken(t, a, 1<<20)
				a.close()
			}
		})
	}
}

// While many other arenas free their pages an arena waits, without blocking a thread.
func TestFewArenasGivePagesBackAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, pages := counted(1 << 20)
		defer a.close()
		if err := a.free(taken(t, a, 1)); err != nil {
			t.Fatal(err)
		}
		for range cap(trims) {
			trims <- struct{}{}
		}
		given := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return pages.given
		}
		<-time.After(slabIdleTimeout + 1)
		synctest.Wait()
		if given() != 0 {
			t.Errorf("%d bytes went back", given())
		}
		for range cap(trims) {
			<-trims
		}
		<-time.After(slabIdleTimeout)
		synctest.Wait()
		if given() != 1<<16 {
			t.Errorf("%d bytes went back afterwards", given())
		}
	})
}
