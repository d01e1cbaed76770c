package mux

import (
	"context"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Invoke implements [link.Session].
func (s *Session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	step := wire.Step{Open: &c.CallHeader, HasMessage: true, HalfClose: true}
	m, inBytes := c.Request.(*link.Message)
	if !inBytes {
		live := link.Live(c.Request, c.Codec)
		m = &live
	}
	message, err := s.encode(&step, m, c.Encoding)
	if err != nil {
		return err
	}
	st := streamPool.Get().(*stream)
	st.in.unary = true
	st.waiter = wait.TaskOf(ctx)
	s.mu.Lock()
	if err := s.open(ctx, st, &c.CallHeader); err != nil {
		s.unplace(&step)
		s.mu.Unlock()
		st.recycle()
		message.Free()
		return err
	}
	st.enqueue(step, message)
	s.flush(true)
	s.mu.Lock()
	for !st.in.Replied(c.Limit) {
		if it := st.in.Last(); it != nil && it.Message && st.grantForMessage(it) {
			s.flush(false)
			s.mu.Lock()
			continue
		}
		if err := s.await(ctx, st, &st.in.receiver); err != nil {
			st.cancelCall(link.ContextEnd(err))
		}
	}
	err = st.finishCall(c)
	st.recycle() // the call has ended, so the session holds no reference to st
	return err
}

// cancelCall aborts the call for reason and tells the peer. Called with the session's
// mu held; mu is released in between.
func (st *stream) cancelCall(reason error) {
	var after callbacks
	st.abort(reason, true, &after)
	st.session.flush(false)
	after.run()
	st.session.mu.Lock()
}

// finishCall collects the result of a call whose caller can stop waiting. Called with the
// session's mu held, which it releases.
func (st *stream) finishCall(c *link.UnaryCall) error {
	replies, wrong := st.in.Collect(c)
	st.in.dropPlaces()
	if wrong != nil {
		st.cancelCall(context.Canceled)
	} else {
		st.ended = true
	}
	st.session.mu.Unlock()
	var lost error
	for i := range replies {
		if lost = fetch(&replies[i]); lost != nil {
			replies = replies[:i]
			break
		}
	}
	return st.in.DecodeReplies(c, replies, lost, wrong)
}
