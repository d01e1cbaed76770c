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
	for !st.in.Replied(c.Limit) {
		st.await()
	}
	return st.finishCall(c)
}

// finishCall collects the result of a call whose caller can stop waiting. Called with mu held,
// which it releases.
func (st *stream) finishCall(c *link.UnaryCall) error {
	replies, wrong := st.in.Collect(c)
	st.ended = wrong == nil
	st.mu.Unlock()
	if wrong != nil {
		st.abort(context.Canceled, true)
	}
	return st.in.DecodeReplies(c, replies, nil, wrong)
}
