package mux

import (
	"container/list"
	"context"
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// admission limits how many calls of this side are open at a time to what the peer
// allows. Calls over the limit wait in a queue, first in, first out. Guarded by the
// session's mu.
//
// When a call ends while others wait, its slot passes directly to the first in the
// queue: one step removes that ticket from the queue, and open stays the same.
type admission struct {
	open  uint64    // calls admitted, including those that have just got a slot in the queue
	queue list.List // of *ticket; a list, because many can leave it at once when their deadlines pass
}

type ticket struct {
	cond     wait.Cond
	admitted bool // it got a slot, or the session refuses new calls
}

// admit counts a call as open. It waits while the peer's limit is reached, and fails if
// the session makes no new calls. Called with mu held; mu is released while it waits.
func (s *Session) admit(ctx context.Context) error {
	if s.refusal != nil {
		return link.Unprocessed{Err: s.refusal}
	}
	if s.hello.Features&wire.FeatureNoCalls != 0 {
		return fmt.Errorf("%s: %w", s.opts.Name, link.ErrOneWay)
	}
	a := &s.admission
	if limit := s.hello.Calls; limit == 0 || a.open < limit {
		a.open++
		return nil
	}
	w := wait.TaskOr(ctx, &s.parkers)
	t := new(ticket)
	place := a.queue.PushBack(t)
	for !t.admitted {
		s.do(s.roles.Wait())
		if err := t.cond.WaitContext(ctx, &s.mu, w); err != nil {
			s.roles.Woken()
			a.queue.Remove(place)
			return link.ContextEnd(err)
		}
	}
	if s.refusal != nil {
		s.releaseCall()
		return link.Unprocessed{Err: s.refusal}
	}
	return nil
}

// releaseCall frees the slot of one call, or passes it to the first in the queue. mu is held.
func (s *Session) releaseCall() {
	a := &s.admission
	// Calls opened before HELLO may exceed its limit.
	if limit := s.hello.Calls; a.queue.Len() == 0 || limit > 0 && a.open > limit {
		a.open--
		return
	}
	s.wakeTicket(a.queue.Remove(a.queue.Front()).(*ticket))
}

// wakeTicket wakes a caller that has been removed from the queue. mu is held.
func (s *Session) wakeTicket(t *ticket) {
	t.admitted = true
	wait.Unpark(s.wake(&t.cond))
}

// refuseQueued wakes all queued callers, which then fail with s.refusal. mu is held.
func (s *Session) refuseQueued() {
	a := &s.admission
	for a.queue.Len() > 0 {
		a.open++ // admit frees the slot again
		s.wakeTicket(a.queue.Remove(a.queue.Front()).(*ticket))
	}
}
