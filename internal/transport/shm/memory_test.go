package shm

import (
	"testing"

	"github.com/nearcall/nearcall/internal/counters"
)

func TestMemoryIsTakenUpToItsBound(t *testing.T) {
	before := counters.Shm.Bytes.Load()
	m := NewMemory(100, false)
	for _, step := range []struct {
		take, give int
		ok         bool
	}{{take: 60, ok: true}, {take: 41}, {take: 40, ok: true}, {take: 1}, {give: 60}, {take: 60, ok: true}, {give: 100}} {
		if step.take > 0 && m.reserve(step.take) != step.ok {
			t.Errorf("%d bytes are taken: %v", step.take, !step.ok)
		}
		if step.give > 0 {
			m.unreserve(step.give)
		}
	}
	if m.used.Load() != 0 || counters.Shm.Bytes.Load() != before {
		t.Errorf("%d bytes are left, %d are counted", m.used.Load(), counters.Shm.Bytes.Load()-before)
	}
}

func TestSlabsAreCutWhileThereIsMemory(t *testing.T) {
	memory := NewMemory(3<<16, false)
	pages := &testPages{most: 1 << 20}
	a := newArena(make([]byte, 1<<20), memory, pages)
	var out []int
	for range 3 {
		out = append(out, taken(t, a, 1))
	}
	if _, _, ok := a.allocate(1); ok {
		t.Fatal("there is a slab beyond the bound")
	}
	for _, at := range out {
		if err := a.free(at); err != nil {
			t.Fatal(err)
		}
	}
	if got := memory.used.Load(); got != 3<<16 {
		t.Errorf("%d bytes are taken by slabs that are kept, want %d", got, 3<<16)
	}
	if _, _, ok := a.allocate(1 << 18); ok {
		t.Error("a slab reaches beyond the bound")
	}
	if err := a.free(taken(t, a, 1<<17)); err != nil { // its pages are reserved already
		t.Error(err)
	}
	a.trim()
	if got := memory.used.Load(); got != 0 {
		t.Errorf("%d bytes are taken by slabs that were given back", got)
	}
	at := taken(t, a, 1)
	a.close()
	if got := memory.used.Load(); got != 0 || !pages.dropped {
		t.Errorf("%d bytes are taken after close, with the slab at %d out", got, at)
	}
}

// hoard allocates all slabs that connections can get, one connection after the other, and
// returns the bytes of each.
func hoard(t *testing.T, memory *Memory, connections int) (each []int) {
	slabs := make([]byte, maxSlabs) // shared by all arenas, as none writes to it
	for range connections {
		if !memory.reserve(controlIs + ringSize) {
			t.Fatalf("connection %d gets no ring", len(each)+1)
		}
		a := newArena(slabs, memory, &testPages{most: maxSlabs})
		got := 0
		for {
			b, at, ok := a.allocate(1)
			if !ok {
				break
			}
			a.sendAll(at)
			got += cap(b)
		}
		each = append(each, got)
	}
	return each
}

func TestPeersThatReturnNoSlabLeaveSomeToOthers(t *testing.T) {
	memory := NewMemory(16*maxSlabs, true) // the default
	each := hoard(t, memory, 30)
	if first := each[0]; first != maxSlabs {
		t.Errorf("the first connection gets %d bytes of %d", first, maxSlabs)
	}
	if eighteenth := each[17]; eighteenth < maxSlabs/8 {
		t.Errorf("the connection after 17 that return nothing gets %d bytes of slabs", eighteenth)
	}
	for i, got := range each {
		if i > 0 && got > each[i-1] {
			t.Errorf("connection %d gets %d bytes, more than the %d of that before it", i+1, got, each[i-1])
		}
	}
	rings := 0
	for memory.reserve(controlIs + ringSize) {
		rings++
	}
	if least := 16 * maxSlabs / ringsPart / (controlIs + ringSize); rings < least {
		t.Errorf("there are %d rings left, and should be %d", rings, least)
	}
}

// A connection of the same peer that drains keeps no other out.
func TestRingsOfOnePeerAreHad(t *testing.T) {
	const one = controlIs + ringSize
	memory := NewMemory(one, false)
	if !memory.reserve(one) || !memory.reserveRings(one) {
		t.Error("another connection gets no rings")
	}
	if memory.reserve(1) {
		t.Error("there is memory for slabs beyond the bound")
	}
	if NewMemory(one-1, false).reserveRings(one) {
		t.Error("a connection gets rings that are larger than the bound")
	}
	if shared := NewMemory(one, true); !shared.reserveRings(one) || shared.reserveRings(one) {
		t.Error("several peers get more than the bound")
	}
}

func TestMemoryOfOnePeerIsNotShared(t *testing.T) {
	memory := NewMemory(controlIs+ringSize+maxSlabs, false)
	if each := hoard(t, memory, 1); each[0] != maxSlabs {
		t.Errorf("the connection gets %d bytes", each[0])
	}
}
