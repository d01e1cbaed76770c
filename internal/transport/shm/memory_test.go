package shm

import "testing"

func TestMemoryIsTakenUpToItsBound(t *testing.T) {
	before := Read().Memory
	m := NewMemory(100)
	for _, step := range []struct {
		take, give int
		ok         bool
	}{{take: 60, ok: true}, {take: 41}, {take: 40, ok: true}, {take: 1}, {give: 60}, {take: 60, ok: true}, {give: 100}} {
		if step.take > 0 && m.take(step.take) != step.ok {
			t.Errorf("%d bytes are taken: %v", step.take, !step.ok)
		}
		if step.give > 0 {
			m.give(step.give)
		}
	}
	if m.used.Load() != 0 || Read().Memory != before {
		t.Errorf("%d bytes are left, %d are counted", m.used.Load(), Read().Memory-before)
	}
}

func TestSlabsAreCutWhileThereIsMemory(t *testing.T) {
	memory := NewMemory(3 << 16)
	a := newArena(make([]byte, 1<<20), memory, func([]byte) {}, func() {})
	var out []int
	for range 3 {
		out = append(out, taken(t, a, 1))
	}
	if _, _, ok := a.take(1); ok {
		t.Fatal("there is a slab beyond the bound")
	}
	for _, at := range out {
		if err := a.back(at); err != nil {
			t.Fatal(err)
		}
	}
	if got := memory.used.Load(); got != 3<<16 {
		t.Errorf("%d bytes are taken by slabs that are kept, want %d", got, 3<<16)
	}
	if _, _, ok := a.take(1 << 18); ok {
		t.Error("a slab reaches beyond the bound")
	}
	if err := a.back(taken(t, a, 1<<17)); err != nil { // what was taken before is enough for it
		t.Error(err)
	}
	a.trim()
	if got := memory.used.Load(); got != 0 {
		t.Errorf("%d bytes are taken by slabs that were given back", got)
	}
	at := taken(t, a, 1)
	a.close()
	if got := memory.used.Load(); got != 0 || a.drop != nil {
		t.Errorf("%d bytes are taken after close, with the slab at %d out", got, at)
	}
}
