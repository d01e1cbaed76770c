package shm

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// plenty is memory for all tests that do not count it.
var plenty = NewMemory(1 << 40)

// counted is an arena of n bytes that counts what it gives back.
func counted(n int) (a *arena, given *int, dropped *bool) {
	given, dropped = new(int), new(bool)
	return newArena(make([]byte, n), plenty, func(b []byte) { *given += len(b) }, func() { *dropped = true }), given, dropped
}

// taken takes a slab and writes nothing to it.
func taken(t *testing.T, a *arena, n int) (at int) {
	t.Helper()
	b, at, ok := a.take(n)
	if !ok || len(b) != 0 || cap(b) < n || at+cap(b) > len(a.mem) {
		t.Fatalf("a slab for %d bytes: %d of %d at %d, %v", n, len(b), cap(b), at, ok)
	}
	a.wrote()
	return at
}

func TestTheSlabThatWasGivenBackLastIsTheNext(t *testing.T) {
	a, _, _ := counted(1 << 20)
	first, second := taken(t, a, 100_000), taken(t, a, 100_000)
	_ = taken(t, a, 1) // as long as one is out
	for _, at := range []int{first, second} {
		if err := a.back(at); err != nil {
			t.Fatal(err)
		}
	}
	if at := taken(t, a, 70_000); at != second {
		t.Errorf("it is that at %d, not that at %d", at, second)
	}
	a.close()
}

func TestSlabsDoNotOverlapAndEnd(t *testing.T) {
	a, _, _ := counted(1 << 20)
	used := make([]bool, len(a.mem))
	for i, n := range []int{1, 1 << 16, 1<<16 + 1, 1 << 18} {
		b, at, ok := a.take(n)
		if !ok {
			t.Fatalf("there is no slab for %d bytes", n)
		}
		a.wrote()
		for j := at; j < at+cap(b); j++ {
			if used[j] {
				t.Fatalf("the slab of number %d overlaps another at %d", i, j)
			}
			used[j] = true
		}
	}
	for n := range 10 {
		if _, _, ok := a.take(1 << 19); ok {
			a.wrote()
		} else if n == 0 {
			t.Fatal("there was room for one more")
		} else {
			break
		}
	}
	if _, _, ok := a.take(1<<24 + 1); ok {
		t.Error("there is a slab for more than any has")
	}
	if _, _, ok := a.take(0); ok {
		t.Error("there is a slab for nothing")
	}
	a.close()
}

func TestThereIsNoSlabBesideOneThatHasAll(t *testing.T) {
	a, _, _ := counted(1 << 20)
	at := taken(t, a, 1<<20)
	if _, _, ok := a.take(1); ok {
		t.Fatal("there is room beside all of it")
	}
	if err := a.back(at); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, a, 1); got != at {
		t.Errorf("it is at %d", got)
	}
	a.close()
}

func TestASmallMessageTakesALargeSlabThatIsFree(t *testing.T) {
	a, _, _ := counted(1 << 20)
	large, rest := taken(t, a, 1<<19), taken(t, a, 1<<19)
	if err := a.back(large); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, a, 1); got != large {
		t.Errorf("it is at %d, beside that at %d", got, rest)
	}
	a.close()
}

// TestSlabsAreCutAnew: that there were many small ones at a time does not keep
// large ones from being there afterwards.
func TestSlabsAreCutAnew(t *testing.T) {
	a, _, _ := counted(1 << 20)
	var all []int
	for range 16 {
		all = append(all, taken(t, a, 1<<16))
	}
	for _, at := range all {
		if err := a.back(at); err != nil {
			t.Fatal(err)
		}
	}
	taken(t, a, 1<<20)
	a.close()
}

func TestASlabThatIsNotOutCannotBeReturned(t *testing.T) {
	a, _, _ := counted(1 << 20)
	at := taken(t, a, 1)
	for _, wrong := range []int{at + 1, -1, 1 << 30} {
		if err := a.back(wrong); !errors.Is(err, errBroken) {
			t.Errorf("at %d: %v", wrong, err)
		}
	}
	if err := a.back(at); err != nil {
		t.Error(err)
	}
	if err := a.back(at); !errors.Is(err, errBroken) {
		t.Errorf("a second time: %v", err)
	}
	a.close()
}

func TestMemoryIsFreedWhenNobodyWritesToItAnyMore(t *testing.T) {
	a, _, dropped := counted(1 << 20)
	if _, _, ok := a.take(1); !ok {
		t.Fatal("there is no slab")
	}
	a.close()
	if *dropped {
		t.Fatal("it is freed while somebody writes")
	}
	if _, _, ok := a.take(1); ok {
		t.Error("a closed arena has slabs")
	}
	a.wrote()
	if !*dropped {
		t.Error("it is not freed")
	}
}

func TestPagesOfSlabsThatAreNotUsedGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, all, _ := counted(1 << 20)
		defer a.close()
		given := func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			return *all
		}
		kept, other := taken(t, a, 1<<17), taken(t, a, 1)
		if err := a.back(kept); err != nil {
			t.Fatal(err)
		}
		later := func() {
			synctest.Wait()
			<-time.After(slabsLast + 1)
			synctest.Wait()
		}
		if later(); given() != 0 {
			t.Errorf("%d bytes go back while a slab is out", given())
		}
		if err := a.back(other); err != nil {
			t.Fatal(err)
		}
		<-time.After(slabsLast - 1)
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
