package mux

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearcall/nearcall/internal/options"
)

// A tried connection counts its TryReads.
type tried struct {
	Conn
	Prompt
	times atomic.Int64
}

func (c *tried) TryRead(b []byte) (int, error) {
	c.times.Add(1)
	return c.Prompt.TryRead(b)
}

func TestReadersTryUnlessTheyAreToPark(t *testing.T) {
	for name, parks := range map[string]bool{"try": false, "park": true} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, "tcp")
			if PromptOf(a) == nil {
				t.Skip("the system has no read of a socket that does not wait")
			}
			client, server := &tried{Conn: a, Prompt: PromptOf(a)}, &tried{Conn: b, Prompt: PromptOf(b)}
			cs, _ := startBoth(t, client, server, Options{Config: configured(false, func(c *options.Connections) { c.NoSpinning = parks })}, Options{Config: configured(false, func(c *options.Connections) { c.NoSpinning = parks })}, &waiter{})
			for range 100 {
				echoes(t, cs, noise(100))
			}
			if c, s := client.times.Load(), server.times.Load(); parks && c+s > 0 || !parks && (c == 0 || s == 0) {
				t.Errorf("the client has tried %d times, and the server %d times", c, s)
			}
		})
	}
}

func TestReadersSpinWhileMostSpinsSucceed(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name            string
		successes, fail int // in turn
		spins           bool
	}{
		{"all succeed", 1, 0, true},
		{"one of six fails", 5, 1, true},
		{"one of four fails", 3, 1, false},
		{"all fail", 0, 1, false},
	} {
		p := spinBudget{earned: maxEarned, readAt: now}
		for range maxEarned {
			for range c.successes {
				p.spun(true)
			}
			for range c.fail {
				p.spun(false)
			}
		}
		if got := p.allows(now); got != c.spins || p.earned < 0 || p.earned > maxEarned {
			t.Errorf("%s: spins is %t with %d earned, want %t", c.name, got, p.earned, c.spins)
		}
	}
}

func TestShortWaitsOfParkedReadersBringSpinningBack(t *testing.T) {
	now := time.Now()
	p := spinBudget{readAt: now}
	for range maxEarned {
		p.parked(maxSpin)
	}
	if p.allows(now) {
		t.Error("a reader spins after long waits")
	}
	for range spinGain {
		p.parked(maxSpin - 1)
	}
	if !p.allows(now) {
		t.Error("a reader does not spin after short waits")
	}
}

func TestReadersParkAfterAPause(t *testing.T) {
	now := time.Now()
	p := spinBudget{earned: maxEarned, readAt: now}
	if !p.allows(now.Add(maxSpin-1)) || p.allows(now.Add(maxSpin)) {
		t.Error("a reader parks before a pause has lasted as long as a spin, or spins afterwards")
	}
}

// A large message arrives in many pieces. Readers take several of them at once if they park.
func TestReadersOfLargeMessagesPark(t *testing.T) {
	s := &Session{opts: Options{}.withDefaults()}
	s.reading.isMet = true
	s.acceptor = &waiter{}
	if !s.readsForFewLocked() {
		t.Error("a reader of small messages parks")
	}
	s.reading.in = newBuffer(readBuffer)
	s.reading.in.B = s.reading.in.B[:cap(s.reading.in.B)] // the pool may give more than readBuffer
	s.keepPartialFrame(s.reading.in.B[:10])
	if s.readsForFewLocked() {
		t.Error("a reader spins in the middle of a message that filled its buffer")
	}
	s.keepPartialFrame(nil)
	if !s.readsForFewLocked() {
		t.Error("a reader parks once the large message is over")
	}
	s.reading.in.Free()
}

// Silent calls must not keep readers from spinning.
func TestSilentCallsDoNotCount(t *testing.T) {
	s := &Session{opts: Options{}.withDefaults(), streams: make(map[uint64]*stream), live: make(map[*stream]struct{})}
	add := func(n int) (added []*stream) {
		for range n {
			st := new(stream)
			s.lastOwn += 2
			s.initStreamLocked(st, s.lastOwn, "")
			s.streams[st.id] = st
			added = append(added, st)
		}
		return added
	}
	read := func(n int, of ...*stream) {
		for range n {
			s.silent.reads++
			for _, st := range of {
				_, _ = s.lookupLocked(st.id)
			}
			s.activeLocked()
		}
	}
	busy := add(3)
	watches := add(1000)
	if n := s.activeLocked(); n != 1003 {
		t.Errorf("%d are active that have just begun, want 1003", n)
	}
	read(3000, busy...)
	if n := s.activeLocked(); n != 3 {
		t.Errorf("%d are active, want the 3 that something came for", n)
	}
	read(1500, watches[:50]...)
	if n := s.activeLocked(); n < 50 || n > 53 {
		t.Errorf("%d are active, want the 50 that something came for", n)
	}
	add(20)
	if n := s.activeLocked(); n < 70 || n > 73 {
		t.Errorf("%d are active, with the 20 that have begun", n)
	}
	for _, st := range watches {
		delete(s.streams, st.id)
		delete(s.live, st)
	}
	if n := s.activeLocked(); n < 0 || n > 23 {
		t.Errorf("%d are active once the others are over", n)
	}
}
