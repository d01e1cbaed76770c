package shm

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// drafted returns a draft of n bytes.
func drafted(t *testing.T, a *arena, n int) (b []byte, at int) {
	t.Helper()
	b, at, ok := a.allocate(n)
	if !ok {
		t.Fatalf("there is no draft of %d bytes", n)
	}
	return b[:cap(b)], at
}

func TestAMessageIsSentFromWhereItIsInADraft(t *testing.T) {
	a, _ := counted(1 << 20)
	_ = taken(t, a, 1) // so that the draft does not begin at 0
	b, at := drafted(t, a, 200_000)
	for name, part := range map[string][]byte{"all": b, "the beginning": b[:70_000], "the end": b[len(b)-100_001:], "the middle": b[65_537:90_000]} {
		sent, ok := a.send(part)
		if want := at + len(b) - cap(part[:0:cap(part)]); !ok || sent != want {
			t.Fatalf("%s is sent from %d, %v, want %d", name, sent, ok, want)
		}
		if _, ok := a.send(b[:70_000]); ok {
			t.Errorf("after %s another message is sent before it was returned", name)
		}
		if err := a.free(sent); err != nil {
			t.Fatal(err)
		}
		if err := a.free(sent); !errors.Is(err, errBroken) {
			t.Errorf("%s is returned twice: %v", name, err)
		}
	}
	a.done(at)
	if _, ok := a.send(b); ok {
		t.Error("a message is sent from a draft that has ended")
	}
	if _, ok := a.send(make([]byte, 100_000)); ok {
		t.Error("a message is sent from memory of another kind")
	}
	a.close()
}

func TestAPeerCannotReturnADraft(t *testing.T) {
	a, _ := counted(1 << 20)
	b, at := drafted(t, a, 100_000)
	if err := a.free(at); !errors.Is(err, errBroken) {
		t.Errorf("a draft is returned that was not sent: %v", err)
	}
	sent, _ := a.send(b[64:])
	a.done(at)
	if err := a.free(at); !errors.Is(err, errBroken) {
		t.Errorf("the slab is returned, and not the message: %v", err)
	}
	if err := a.free(sent); err != nil {
		t.Error(err)
	}
	a.close()
}

// Whatever users and peers do, and in whichever order, a slab is used again only when its user is
// done and the peer has returned its message. A peer returns nothing but what it was sent. The
// memory is unmapped when the arena is closed and nobody writes.
func FuzzArena(f *testing.F) {
	for _, script := range scripts(200, 600) {
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		m := model{t: t, script: script, memory: NewMemory(1<<30, false), sent: make(map[int]*use)}
		m.pages = &testPages{most: 3 << 19, during: func(int) { m.peer() }, freeing: m.peer}
		m.arena = newArena(make([]byte, 2<<20), m.memory, m.pages)
		for len(m.script) > 0 {
			m.step()
			m.check()
		}
		m.arena.close()
		m.closed = true
		for len(m.all) > 0 {
			m.done(m.all[0])
		}
		if m.check(); m.memory.used.Load() != 0 {
			t.Errorf("%d bytes are counted when all is over", m.memory.used.Load())
		}
	})
}

// scripts returns count scripts of n random bytes, the same each time.
func scripts(count, n int) (all [][]byte) {
	for seed := range count {
		script := make([]byte, n)
		r := rand.New(rand.NewPCG(uint64(seed), 0))
		for i := range script {
			script[i] = byte(r.Uint32())
		}
		all = append(all, script)
	}
	return all
}

// A model says what an arena should do in each step of a script.
type model struct {
	t      *testing.T
	script []byte
	memory *Memory
	pages  *testPages
	arena  *arena
	closed bool
	all    []*use       // slabs in use
	sent   map[int]*use // those with messages that the peer may return, by the messages' offsets
}

// A use is a slab in use.
type use struct {
	b        []byte
	from, to int
	written  bool
	sent     bool
}

// next returns the next number of the script, below n.
func (m *model) next(n int) int {
	if len(m.script) < 2 {
		m.script = nil
		return 0
	}
	v := int(m.script[0])<<8 | int(m.script[1])
	m.script = m.script[2:]
	return v % n
}

func (m *model) step() {
	var u *use
	if len(m.all) > 0 {
		u = m.all[m.next(len(m.all))]
	}
	switch op := m.next(20); {
	case op < 7 || u == nil:
		b, at, ok := m.arena.allocate(1 + 5*m.next(60_000))
		if !ok {
			return
		}
		u = &use{b: b[:cap(b)], from: at, to: at + cap(b), written: true}
		for _, other := range m.all {
			if u.from < other.to && other.from < u.to {
				m.t.Fatalf("the slab at %d overlaps that at %d, which is in use", u.from, other.from)
			}
		}
		if m.closed {
			m.t.Fatal("a closed arena has a slab")
		}
		m.all = append(m.all, u)
	case op < 10 && u.written:
		begin := m.next(len(u.b))
		at, ok := m.arena.send(u.b[begin:])
		if ok != (!u.sent && !m.closed) || ok && at != u.from+begin {
			m.t.Fatalf("a message at %d of the slab at %d is sent from %d, %v", begin, u.from, at, ok)
		}
		if ok {
			u.sent, m.sent[at] = true, u
		}
	case op < 13 && u.written && !u.sent:
		m.arena.sendAll(u.from)
		u.written, u.sent, m.sent[u.from] = false, true, u
	case op < 16 && u.written:
		m.done(u)
	case op == 16:
		m.arena.trim()
	case op == 17 && m.next(20) == 0:
		m.arena.close()
		m.closed = true
	default:
		m.peer()
	}
}

func (m *model) done(u *use) {
	if u.written {
		m.arena.done(u.from)
		u.written = false
	}
	m.forget(u)
}

// forget forgets slabs that nobody uses, and those of a closed arena that no side writes to.
func (m *model) forget(u *use) {
	if !u.written && (!u.sent || m.closed) {
		m.all = slices.DeleteFunc(m.all, func(o *use) bool { return o == u })
	}
}

// peer returns some places: those of messages, and any other.
func (m *model) peer() {
	for range m.next(4) {
		at := m.next(len(m.arena.mem)/partAlign) * partAlign
		if m.next(2) == 0 {
			at += m.next(1<<16) - 1<<15
		}
		if all := slices.Sorted(maps.Keys(m.sent)); len(all) > 0 && m.next(2) == 0 {
			at = all[m.next(len(all))]
		}
		u := m.sent[at]
		if err := m.arena.free(at); (err == nil) != (u != nil) || err != nil && !errors.Is(err, errBroken) {
			m.t.Errorf("the place %d is returned, which was sent: %v, %v", at, u != nil, err)
		}
		if u != nil {
			delete(m.sent, at)
			u.sent = false
			m.forget(u)
		}
	}
}

func (m *model) check() {
	writes := slices.ContainsFunc(m.all, func(u *use) bool { return u.written })
	if m.pages.dropped != (m.closed && !writes) {
		m.t.Fatalf("unmapped: %v, closed: %v, somebody writes: %v", m.pages.dropped, m.closed, writes)
	}
}
