package shm

import (
	"testing"
)

// Of what peers have in their slabs a part of the Memory's bound is read through mappings, and the
// rest in the way that costs this side nothing.
func TestWhatIsReadThroughMappingsIsBounded(t *testing.T) {
	memory := NewMemory(readsPart*6*partAlign, false)
	slabs := &testSlabs{mapped: make([]byte, 16*partAlign)}
	f := fetchingOf(slabs, memory)
	read := func(at, n int, mapped bool) {
		t.Helper()
		before := slabs.reads.Load()
		if err := f.read(make([]byte, n), at); err != nil {
			t.Fatal(err)
		}
		if got := slabs.reads.Load() == before; got != mapped {
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
}

// No peer gets all of what may be read through mappings.
func TestEachPeerLeavesSomeOfWhatIsReadToOthers(t *testing.T) {
	memory := NewMemory(readsPart*maxSlabs, true)
	last := maxSlabs
	for i := range 8 {
		f := fetchingOf(&testSlabs{mapped: make([]byte, maxSlabs)}, memory)
		for at := 0; at < maxSlabs; at += partAlign {
			_ = f.read(make([]byte, 1), at)
		}
		if f.paid == 0 || f.paid > last {
			t.Errorf("peer %d gets %d bytes, that before it %d", i, f.paid, last)
		}
		last = f.paid
	}
}

// The slabs stay while a message is read from them, also if the connection ends and there is no
// memory to keep what was not received.
func TestSlabsAreNotClosedWhileTheyAreRead(t *testing.T) {
	for name, mapped := range map[string][]byte{"through a mapping": make([]byte, partAlign), "with pread": nil} {
		t.Run(name, func(t *testing.T) {
			memory := NewMemory(readsPart*partAlign, false)
			slabs := &testSlabs{n: 100, mapped: mapped}
			f := fetchingOf(slabs, memory)
			memory.kept.Store(memory.max)
			if err := f.hold(0, 10); err != nil {
				t.Fatal(err)
			}
			slabs.during = func() {
				slabs.during = nil
				f.close()
				if slabs.closed != 0 {
					t.Error("the slabs are closed while they are read")
				}
			}
			if err := f.fetch(make([]byte, 10), 0); err != nil {
				t.Error(err)
			}
			if slabs.closed != 1 || memory.read.Load() != 0 {
				t.Errorf("the slabs were closed %d times, and %d bytes are reserved", slabs.closed, memory.read.Load())
			}
			f.release(0)
		})
	}
}
