package mux

import (
	"context"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Call implements [link.Session].
func (s *Session) Call(ctx context.Context, c *link.Call) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	step := wire.Step{Open: &c.Open, HasMessage: true, HalfClose: true}
	m, inBytes := c.Request.(*link.Message)
	if !inBytes {
		live := link.Live(c.Request, c.Codec)
		m = &live
	}
	message, err := s.encode(&step, m, c.Encoding)
	if err != nil {
		return err
	}
	st := callStreams.Get().(*stream)
	st.waiter = wait.TaskOf(ctx)
	s.mu.Lock()
	if err := s.open(ctx, st, &c.Open); err != nil {
		s.unplace(&step)
		s.mu.Unlock()
		st.waiter = nil
		callStreams.Put(st)
		message.free()
		return err
	}
	st.put(step, message)
	s.flush(true)
	s.mu.Lock()
	for !st.settled(c) {
		if it := st.in.first(); it != nil && it.message && st.expect(it) {
			s.flush(false)
			s.mu.Lock()
			continue
		}
		if err := s.await(ctx, st, &st.in.receiver); err != nil {
			st.leave(link.ContextEnd(err))
		}
	}
	err = st.reply(c)
	*st = stream{} // it is over, so that the session has forgotten it
	callStreams.Put(st)
	return err
}

// callStreams are those of calls made with Call, which nobody else gets hold of.
var callStreams = sync.Pool{New: func() any { return new(stream) }}

// settled reports whether a caller of Call need wait no more: the call is over,
// or the peer sends what it cannot take. The session's mu is held.
func (st *stream) settled(c *link.Call) bool {
	in := &st.in
	first := in.first()
	// A header may have come after a message. It has an item of its own then.
	two := len(in.items) > 2 || len(in.items) == 2 && in.items[1].message
	return in.err != nil || two || first != nil && first.message && first.size > c.Limit
}

func (in *inbox) first() *item {
	if len(in.items) == 0 {
		return nil
	}
	return &in.items[0]
}

// leave ends the call for reason, and lets the peer know. The session's mu is
// held.
func (st *stream) leave(reason error) {
	var after callbacks
	st.abort(reason, true, &after)
	st.session.flush(false)
	after.run()
	st.session.mu.Lock()
}

// reply takes what has arrived of a call that is settled. The session's mu is
// held, and released.
func (st *stream) reply(c *link.Call) error {
	s, in := st.session, &st.in
	var message item
	var end *link.End
	var wrong error
	for wrong == nil && len(in.items) > 0 {
		it := in.items[0]
		if it.header != nil {
			c.Header = it.header
		}
		switch {
		case !it.message:
		case message.message:
			wrong = link.ErrReplies
			it.place.drop()
		case it.size > c.Limit:
			wrong = &link.RecvError{Size: it.size, Limit: c.Limit}
			it.place.drop()
		default:
			message = it
		}
		end = it.end
		in.pop()
	}
	switch {
	case wrong != nil:
		message.place.drop()
		st.leave(context.Canceled)
	case end != nil:
		st.over = true
	default:
		wrong = in.err
		message.place.drop()
	}
	s.mu.Unlock()
	if wrong != nil {
		message.data.free()
		return wrong
	}
	c.Status, c.Trailer = end.Status, end.Trailer
	if message.message {
		message.fetch()
		c.ReplyError = decode(message.data, message.compressed, st.encoding, &link.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit})
		c.Replied = c.ReplyError == nil
	}
	return nil
}
