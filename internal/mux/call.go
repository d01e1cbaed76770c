package mux

import (
	"context"

	"github.com/nearcall/nearcall/internal/encoded"
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
	for !st.callDone(c) {
		if it := st.in.last(); it != nil && it.message && st.grantForMessage(it) {
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

// callDone reports whether Invoke can stop waiting: the call has ended, or the peer has
// sent a message that is too large or a complete second message. The session's mu is
// held.
func (st *stream) callDone(c *link.UnaryCall) bool {
	in := &st.in
	if in.err != nil {
		return true
	}
	replies := 0
	for i := range in.items {
		it := &in.items[i]
		if !it.message {
			continue
		}
		if replies++; it.size > c.Limit || replies > 1 && it.missing == 0 {
			return true
		}
	}
	return false
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

// finishCall collects the result of a call for which callDone is true. Called with the
// session's mu held, which it releases.
func (st *stream) finishCall(c *link.UnaryCall) error {
	s, in := st.session, &st.in
	var room [2]item
	replies := room[:0]
	var end *link.End
	var wrong error
	for ; wrong == nil && len(in.items) > 0; in.pop() {
		it := in.items[0]
		if it.header != nil {
			c.Header = it.header
		}
		switch {
		case !it.message:
		case it.size > c.Limit:
			wrong = &link.RecvError{Size: it.size, Limit: c.Limit}
			it.place.drop()
		default:
			if replies = append(replies, it); len(replies) == 2 {
				wrong = link.ErrReplies
			}
		}
		end = it.end
	}
	switch {
	case wrong != nil:
		st.cancelCall(context.Canceled)
	case end != nil:
		st.ended = true
	default:
		wrong = in.err
		for _, it := range replies {
			it.place.drop()
			it.data.Free()
		}
		replies = nil
	}
	encoding := st.receives
	s.mu.Unlock()
	unfit := s.decodeReplies(c, replies, encoding)
	if wrong != nil {
		if unfit != nil { // the error of an earlier reply wins
			wrong = unfit
		}
		return wrong
	}
	c.ReplyError, c.Replied = unfit, len(replies) > 0 && unfit == nil
	c.End = *end
	return nil
}

// decodeReplies decodes replies into c.Reply, one after the other. It returns the error
// of the first reply that cannot be decoded.
func (s *Session) decodeReplies(c *link.UnaryCall, replies []item, encoding string) (unfit error) {
	for i := range replies {
		it := &replies[i]
		err := it.fetch()
		if err == nil {
			to := link.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit}
			err = encoded.Decode(it.data, it.compressed, encoding, &to)
			c.ReplySize = to.Size
		}
		if unfit == nil {
			unfit = err
		}
	}
	return unfit
}
