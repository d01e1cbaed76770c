package quic

import (
	"context"
	"errors"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Accepting calls.
//
// One goroutine at a time, the leader, waits for the peer's next call. (quic-go wakes only one of
// several that wait.) Before it reads the call, and perhaps runs its handler, it makes another
// goroutine the leader: a follower, or a new one. So the goroutine that reads a request can run
// its handler without a switch.

// maxFollowers bounds the goroutines of a session that wait to become the leader.
const maxFollowers = 16

type followers struct {
	lead chan struct{} // a token makes a follower the leader; closed when no more calls arrive
	wait int           // how many followers wait; guarded by the session's mu
}

// accept accepts calls. It is called by a new leader.
func (s *session) accept() {
	for {
		qs, err := s.conn.AcceptStream(context.Background())
		if err != nil {
			close(s.lead)
			return
		}
		st := s.begin(qs)
		if st != nil {
			s.serve(st)
		}
		s.mu.Lock()
		follow := s.followers.wait < maxFollowers
		if follow {
			s.followers.wait++
		}
		s.mu.Unlock()
		if !follow {
			return
		}
		if _, ok := <-s.lead; !ok {
			return
		}
	}
}

// begin registers a call of the peer, and makes another goroutine the leader. It returns nil if
// the call is refused.
func (s *session) begin(qs *q.Stream) *stream {
	st := &stream{session: s, qs: qs, holds: 2}
	s.mu.Lock()
	refused := link.IsClosed(s.drained) || s.ended != nil
	if !refused {
		s.seen = numberOf(qs.StreamID())
		s.served = true
		s.live[st] = struct{}{}
		st.round = s.round
		if s.sweep == nil {
			s.sweep = time.AfterFunc(beginTime, s.sweepLive)
		}
		s.refuseAfterLast()
	}
	if s.followers.wait > 0 {
		s.followers.wait--
		s.lead <- struct{}{}
	} else {
		go s.accept()
	}
	s.mu.Unlock()
	if !refused {
		return st
	}
	qs.CancelRead(q.StreamErrorCode(wire.ResetUnprocessed))
	qs.CancelWrite(q.StreamErrorCode(wire.ResetUnprocessed))
	qs.ReleaseStreamCredit()
	return nil
}

// A call of the peer must send its head within beginTime, or at most twice that.
const beginTime = 20 * time.Second

// sweepLive resets the calls that have not begun in time.
func (s *session) sweepLive() {
	var late []*stream
	s.mu.Lock()
	s.round++
	waiting := false
	for st := range s.live {
		if st.caller || st.begun.Load() {
			continue
		}
		waiting = true
		if st.round < s.round-1 {
			late = append(late, st)
		}
	}
	s.sweep = nil
	if waiting && s.ended == nil {
		s.sweep = time.AfterFunc(beginTime, s.sweepLive)
	}
	s.mu.Unlock()
	for _, st := range late {
		st.abort(encoded.Because{Text: "the call has no head", Kind: link.ErrBroken}, true)
	}
}

// serve reads the head of a call and offers it to the acceptor. Then it reads the rest of the
// call, or runs its handler.
func (s *session) serve(st *stream) {
	o, err := st.readHead()
	st.begun.Store(true)
	if err == nil {
		err = context.Cause(st.qs.Context())
	}
	if err != nil {
		st.failed(err)
		st.unhold()
		return
	}
	st.mu.Lock()
	st.unwatch = context.AfterFunc(st.qs.Context(), st.peerStopped)
	st.mu.Unlock()
	if err := s.acceptor.HandleStream(st, o); err != nil {
		st.abort(err, true)
	}
	st.unhold()
	if lent := st.lent; lent != nil {
		lent.Run()
	} else if !st.input.finished {
		st.pump()
	}
}

// peerStopped is called when the sending direction of a callee's stream has ended.
func (st *stream) peerStopped() {
	if err := context.Cause(st.qs.Context()); !errors.Is(err, q.ErrStreamClosed) {
		st.abort(st.reasonOf(err), false)
	}
}

// Lends implements [link.Lender]. The goroutine that has read all of a call has nothing else to
// do, however long the handler takes.
func (st *stream) Lends(time.Duration) bool { return st.input.finished }

// Lend implements [link.Lender].
func (st *stream) Lend(r link.Runner, _ time.Duration) { st.lent = r }

// Release implements [link.Lender]. There is nothing to do: another goroutine has been accepting
// calls since this one took its call.
func (st *stream) Release() {}
