package quic

import (
	"context"
	"errors"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// accept accepts calls until the connection ends. Each call has a goroutine that reads its head
// and then the rest.
func (s *session) accept() {
	for {
		qs, err := s.conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		if st := s.begin(qs); st != nil {
			go s.serve(st)
		}
	}
}

// begin registers a call of the peer. It returns nil if the call is refused.
func (s *session) begin(qs *q.Stream) *stream {
	st := &stream{session: s, qs: qs, holds: 2}
	s.mu.Lock()
	refused := s.life.Drain() == lifecycle.Refusing || s.life.Reason() != nil
	if !refused {
		s.seen = numberOf(qs.StreamID())
		s.served = true
		s.live[st] = struct{}{}
		s.performLocked(s.life.CallBegins())
		s.checkAnsweredLocked()
	}
	s.mu.Unlock()
	if !refused {
		return st
	}
	reset(qs, wire.ResetUnprocessed)
	qs.ReleaseStreamCredit()
	return nil
}

// beginTime is how long the head of a call may take to arrive.
const beginTime = 20 * time.Second

// serve reads the head of a call and offers it to the acceptor. Then it reads the rest of the call.
func (s *session) serve(st *stream) {
	late := time.AfterFunc(beginTime, func() {
		st.abort(encoded.Because{Text: "the call has no head", Kind: link.ErrBroken}, true)
	})
	o, err := st.readHead()
	late.Stop()
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
	if !st.input.finished {
		st.pump()
	}
}

// peerStopped is called when the sending direction of a callee's stream has ended.
func (st *stream) peerStopped() {
	if err := context.Cause(st.qs.Context()); !errors.Is(err, q.ErrStreamClosed) {
		st.abort(st.reasonOf(err), false)
	}
}
