package mux

import (
	"context"
	"slices"

	"github.com/nearcall/nearcall/internal/wait"
)

// places are the calls of this side that the peer takes at a time. Whoever
// comes too many waits, first come first served. They are guarded by the
// session's mu.
//
// A place that is given up while somebody waits passes to the first of them,
// in the same step that takes it from the queue, and stays counted.
type places struct {
	open  uint64 // calls that have a place, or are about to take one
	queue []*ticket
}

type ticket struct {
	spot   wait.Spot
	called bool // it has a place, or there are none any more
}

// admit takes a place for a call, unless no new calls are made. mu is held, and
// released while it waits.
func (s *Session) admit(ctx context.Context) error {
	if s.refusal != nil {
		return unprocessed{s.refusal}
	}
	p := &s.places
	if limit := s.hello.Calls; limit == 0 || p.open < limit {
		p.open++
		return nil
	}
	t := new(ticket)
	p.queue = append(p.queue, t)
	for !t.called {
		if !s.occupied {
			s.callResident() // to see a call end
		}
		s.waiting++
		if err := t.spot.WaitContext(ctx, &s.mu, &s.parkers); err != nil {
			s.waiting--
			p.queue = slices.DeleteFunc(p.queue, func(o *ticket) bool { return o == t })
			return err
		}
	}
	if s.refusal != nil {
		s.vacate()
		return unprocessed{s.refusal}
	}
	return nil
}

// vacate gives a place back. mu is held.
func (s *Session) vacate() {
	p := &s.places
	if limit := s.hello.Calls; len(p.queue) == 0 || limit > 0 && p.open > limit { // there were more before HELLO
		p.open--
		return
	}
	t := p.queue[0]
	p.queue = slices.Delete(p.queue, 0, 1)
	s.admitted(t)
}

// admitted wakes one who has left the queue. mu is held.
func (s *Session) admitted(t *ticket) {
	t.called = true
	if p := t.spot.Wake(); p != nil {
		s.waiting--
		p.Unpark()
	}
}

// refuseQueue has all who wait find that no new calls are made. mu is held.
func (s *Session) refuseQueue() {
	p := &s.places
	for _, t := range p.queue {
		p.open++ // which it gives back
		s.admitted(t)
	}
	p.queue = nil
}
