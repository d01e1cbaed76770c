package mux

import (
	"sync/atomic"
	"testing"

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

// Silent calls must not keep readers from spinning.
func TestSilentCallsDoNotCount(t *testing.T) {
	s := &Session{opts: Options{}.withDefaults(), streams: make(map[uint64]*stream), live: make(map[*stream]struct{})}
	add := func(n int) (added []*stream) {
		for range n {
			st := new(stream)
			s.lastOwn += 2
			s.initStream(st, s.lastOwn, "")
			s.streams[st.id] = st
			added = append(added, st)
		}
		return added
	}
	read := func(n int, of ...*stream) {
		for range n {
			s.silent.reads++
			for _, st := range of {
				_, _ = s.lookup(st.id)
			}
			s.active()
		}
	}
	busy := add(3)
	watches := add(1000)
	if n := s.active(); n != 1003 {
		t.Errorf("%d are active that have just begun, want 1003", n)
	}
	read(3000, busy...)
	if n := s.active(); n != 3 {
		t.Errorf("%d are active, want the 3 that something came for", n)
	}
	read(1500, watches[:50]...)
	if n := s.active(); n < 50 || n > 53 {
		t.Errorf("%d are active, want the 50 that something came for", n)
	}
	add(20)
	if n := s.active(); n < 70 || n > 73 {
		t.Errorf("%d are active, with the 20 that have begun", n)
	}
	for _, st := range watches {
		delete(s.streams, st.id)
		delete(s.live, st)
	}
	if n := s.active(); n < 0 || n > 23 {
		t.Errorf("%d are active once the others are over", n)
	}
}
