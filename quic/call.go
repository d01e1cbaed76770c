package quic

import (
	"context"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// Invoke implements [link.Session]. The caller reads its reply itself, unless it is a task.
func (s *session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	m, inBytes := c.Request.(*link.Message)
	if !inBytes {
		live := link.Live(c.Request, c.Codec)
		m = &live
	}
	message, compressed, err := encoded.Encode(m, c.Encoding)
	if err != nil {
		return err
	}
	defer message.Free()
	st, err := s.open(ctx, &c.CallHeader)
	if err != nil {
		return err
	}
	st.waiter = wait.TaskOf(ctx)
	st.direct, st.in.wanted = st.waiter == nil, true
	if ctx.Done() != nil {
		defer wait.AfterFunc(ctx, func() { st.abort(link.ContextEnd(wait.DoneErr(ctx)), true) })()
	}
	step := wire.Step{
		Stream: 1, Open: &c.CallHeader, Timeout: timeoutOf(c.Deadline),
		HasMessage: true, Message: message.B, Compressed: compressed, HalfClose: true,
	}
	st.mu.Lock()
	if st.out.err == nil {
		st.send(&step)
	}
	if !st.direct {
		go st.pump()
	}
	for !st.callDone(c) {
		st.await()
	}
	return st.finishCall(c)
}

// callDone reports whether Invoke can stop waiting: the call has ended, or the peer has sent a
// message that is too large or a complete second message. mu is held.
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

// finishCall collects the result of a call for which callDone is true. Called with mu held, which
// it releases.
func (st *stream) finishCall(c *link.UnaryCall) error {
	in := &st.in
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
			it.data.Free()
		default:
			if replies = append(replies, it); len(replies) == 2 {
				wrong = link.ErrReplies
			}
		}
		end = it.end
	}
	encoding := in.encoding
	switch {
	case wrong != nil:
		st.mu.Unlock()
		st.abort(context.Canceled, true)
	case end != nil:
		st.ended = true
		st.mu.Unlock()
	default:
		wrong = in.err
		st.mu.Unlock()
		for _, it := range replies {
			it.data.Free()
		}
		replies = nil
	}
	unfit := st.session.decodeReplies(c, replies, encoding)
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

// decodeReplies decodes replies into c.Reply, one after the other. It returns the error of the
// first reply that cannot be decoded.
func (s *session) decodeReplies(c *link.UnaryCall, replies []item, encoding string) (unfit error) {
	for i := range replies {
		it := &replies[i]
		to := link.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.Limit}
		err := encoded.Decode(it.data, it.compressed, encoding, &to)
		c.ReplySize = to.Size
		if unfit == nil {
			unfit = err
		}
	}
	return unfit
}
