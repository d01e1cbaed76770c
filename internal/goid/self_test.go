package goid

import (
	"runtime"
	"sync"
	"testing"
)

func TestEachGoroutineHasANumberOfItsOwn(t *testing.T) {
	const goroutines = 1000
	var mu sync.Mutex
	seen := make(map[uintptr]bool)
	var all, there sync.WaitGroup
	there.Add(goroutines)
	for range goroutines {
		all.Go(func() {
			first := ID()
			there.Done()
			there.Wait() // so that all of them run at the same time
			var grow func(n int) uintptr
			grow = func(n int) uintptr { // the stack moves, and perhaps the thread changes
				var pad [256]byte
				runtime.Gosched()
				if n == 0 {
					return ID() + uintptr(pad[n])
				}
				return grow(n - 1)
			}
			mu.Lock()
			defer mu.Unlock()
			if again := grow(50); again != first || first == 0 {
				t.Errorf("it was %d, and is %d", first, again)
			}
			if seen[first] {
				t.Errorf("two have %d", first)
			}
			seen[first] = true
		})
	}
	all.Wait()
}

func BenchmarkID(b *testing.B) {
	for b.Loop() {
		ID()
	}
}
