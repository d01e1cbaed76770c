package mux

import (
	"context"
	"slices"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// admission is how many calls of this side the peer takes at a time. Whoever
// comes too many waits, first come first served. It is guarded by the session's
// mu.
//
// A turn that is given up while somebody waits passes to the first of them, in
// the same step that takes it from the queue, and stays counted.
type admission struct {
	open  uint64 // calls that were admitted, or are about to be
	queue []*ticket
}

type ticket struct {
	cond     wait.Cond
	admitted bool // it was admitted, or nobody is any more
}

// admit counts a call as open, unless no new calls are made. mu is held, and
// released while it waits.
func (s *Session) admit(ctx context.Context) error {
	if s.refusal != nil {
		return unprocessed{s.refusal}
	}
	if s.hello.Features&wire.FeatureNoCalls != 0 {
		return errNoCalls
	}
	a := &s.admission
	if limit := s.hello.Calls; limit == 0 || a.open < limit {
		a.open++
		return nil
	}
	w := wait.TaskOr(ctx, &s.parkers)
	t := new(ticket)
	a.queue = append(a.queue, t)
	for !t.admitted {
		if !s.occupied {
			s.wakeResident() // to see a call end
		}
		s.waiting++
		if err := t.cond.WaitContext(ctx, &s.mu, w); err != nil {
			s.waiting--
			a.queue = slices.DeleteFunc(a.queue, func(o *ticket) bool { return o == t })
			return link.ContextEnd(err)
		}
	}
	if s.refusal != nil {
		s.releaseCall()
		return unprocessed{s.refusal}
	}
	return nil
}

// releaseCall stops counting a call as open. mu is held.
func (s *Session) releaseCall() {
	a := &s.admission
	if limit := s.hello.Calls; len(a.queue) == 0 || limit > 0 && a.open > limit { // there were more before HELLO
		a.open--
		return
	}
	t := a.queue[0]
	a.queue = slices.Delete(a.queue, 0, 1)
	s.wakeTicket(t)
}

// wakeTicket wakes one who has left the queue. mu is held.
func (s *Session) wakeTicket(t *ticket) {
	t.admitted = true
	if p := t.cond.Wake(); p != nil {
		s.waiting--
		p.Unpark()
	}
}

// refuseQueued wakes all who wait, to find that no new calls are made. mu is held.
func (s *Session) refuseQueued() {
	a := &s.admission
	for _, t := range a.queue {
		a.open++ // which it gives back
		s.wakeTicket(t)
	}
	a.queue = nil
}
