package shm

import (
	"testing"
)

// Of what peers have in their slabs a part of the Memory's bound is read through mappings, and the
// rest in the way that costs this side nothing.
func TestWhatIsReadThroughMappingsIsBounded(t *testing.T) {
	memory := NewMemory(readsPart*6*partAlign, false)
	slabs := &testSlabs{mapped: make([]byte, 16*partAlign)}
	f := &fetching{slabs: slabs, memory: memory}
	read := func(at, n int, mapped bool) {
		t.Helper()
		before := slabs.reads
		if err := f.read(make([]byte, n), at); err != nil {
			t.Fatal(err)
		}
		if got := slabs.reads == before; got != mapped {
			t.Errorf("%d bytes at %d are read through the mapping: %v", n, at, got)
		}
	}
	read(0, 2*partAlign, true)
	read(partAlign, 2*partAlign, true) // half of it is paid for
	read(8*partAlign, 4*partAlign, false)
	read(8*partAlign+1, 3*partAlign-1, true)
	read(15*partAlign, 1, false)
	read(0, 3*partAlign, true)
	slabs.absent = true
	read(0, partAlign, false)
	slabs.absent = false
	if n := memory.read.Load(); n != 6*partAlign {
		t.Errorf("%d bytes are reserved", n)
	}
	f.close()
	if n := memory.read.Load(); n != 0 || memory.used.Load() != 0 {
		t.Errorf("%d bytes are reserved after the end", n)
	}
	read(0, 1, false)
}

// No peer gets all of what may be read through mappings.
func TestEachPeerLeavesSomeOfWhatIsReadToOthers(t *testing.T) {
	memory := NewMemory(readsPart*maxSlabs, true)
	last := maxSlabs
	for i := range 8 {
		f := &fetching{slabs: &testSlabs{mapped: make([]byte, maxSlabs)}, memory: memory}
		for at := 0; at < maxSlabs; at += partAlign {
			_ = f.read(make([]byte, 1), at)
		}
		if f.paid == 0 || f.paid > last {
			t.Errorf("peer %d gets %d bytes, that before it %d", i, f.paid, last)
		}
		last = f.paid
	}
}

// The mapping stays while a message is copied from it, also if the connection ends and there is no
// memory to keep what was not received.
func TestSlabsAreNotUnmappedWhileTheyAreRead(t *testing.T) {
	slabs := &testSlabs{n: 100, mapped: make([]byte, partAlign)}
	f := &fetching{slabs: slabs, memory: NewMemory(readsPart*partAlign, false)}
	f.memory.used.Store(f.memory.max)
	if err := f.hold(0, 10); err != nil {
		t.Fatal(err)
	}
	if f.startReading(0, 10) == nil || f.startReading(0, 5) == nil {
		t.Fatal("nothing is read through the mapping")
	}
	f.close()
	if slabs.closed != 0 {
		t.Fatal("the slabs are unmapped while they are read")
	}
	if f.startReading(0, 1) != nil {
		t.Error("another message is read from slabs that are closed")
	}
	for i := range 2 {
		f.mu.Lock()
		f.readers--
		f.freeUnread()
		f.mu.Unlock()
		if slabs.closed != i {
			t.Errorf("after %d of 2 readers the slabs were closed %d times", i+1, slabs.closed)
		}
	}
	f.release(0)
	if slabs.closed != 1 || f.memory.read.Load() != 0 {
		t.Errorf("the slabs were closed %d times, and %d bytes are reserved", slabs.closed, f.memory.read.Load())
	}
}
