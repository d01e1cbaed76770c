package link

import (
	"context"
	"slices"

	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// Tasks of event loops on transports that block.
//
// Some transports wait within code that knows nothing of loops: grpc-go, net/http or quic-go. Their
// methods block the goroutine that calls them. A task that called them itself would block its loop,
// so tasks call them through [Invoke], [NewStream] and [StreamFor].
//
// Invariants:
//
//   - A task that calls such a method is suspended until the method returns, and the other tasks of
//     its loop run. The method runs on another goroutine.
//   - Codecs run in the task, because a message may share state with other tasks. The other
//     goroutine passes bytes, and accesses no memory of the task. So it does no harm after the task
//     was abandoned.
//   - If a task was abandoned while it waited, its stream is aborted, so that the stream keeps none
//     of the peer's places. A stream that waits for one of these is opened first, so a handler may
//     see it. A call of Invoke goes on without the task until its context ends or the peer answers.

// A TaskStream is a [Stream] that suspends a task that waits in Send or Recv. All other streams
// block their goroutine there.
type TaskStream interface {
	Stream

	// SetWaiter sets the Waiter for Send and Recv. It is called at most once, before the stream is
	// used.
	SetWaiter(w wait.Waiter)
}

// StreamFor returns st for users that wait with w; nil for goroutines. They use only the result.
func StreamFor(w wait.Waiter, st Stream) Stream {
	if w == nil {
		return st
	}
	if own, ok := st.(TaskStream); ok {
		own.SetWaiter(w)
		return st
	}
	return &blockingStream{Stream: st, waiter: w}
}

// Invoke calls s.Invoke. It suspends a caller that is a task.
func Invoke(ctx context.Context, s Session, c *UnaryCall) error {
	w := blockedTask(ctx, s)
	if w == nil {
		return s.Invoke(ctx, c)
	}
	request, err := c.Message().Freeze()
	if err != nil {
		return err
	}
	defer request.Free()
	var replies captured
	own := &UnaryCall{CallHeader: c.CallHeader, Codec: capturing{}, Request: &request, Reply: &replies}
	err = wait.Outside(w, func() error { return s.Invoke(ctx, own) })
	c.Header, c.End, c.ReplyError, c.Replied = own.Header, own.End, own.ReplyError, own.Replied
	to := message.Sink{Dst: c.Reply, Codec: c.Codec, Limit: c.MaxReply}
	unfit := replies.decode(&to)
	c.ReplySize = to.Size
	switch {
	case unfit == nil:
	case err == nil:
		c.ReplyError, c.Replied = unfit, false
	default: // there were two replies; that one cannot be decoded says more
		err = unfit
	}
	return err
}

// NewStream calls s.NewStream. It suspends a caller that is a task. [StreamFor] returns the stream
// that tasks can use.
func NewStream(ctx context.Context, s Session, o *CallHeader) (Stream, error) {
	w := blockedTask(ctx, s)
	if w == nil {
		return s.NewStream(ctx, o)
	}
	opening := new(opening)
	defer wait.OnAbandon(w, opening)()
	err := wait.Outside(w, func() (err error) {
		opening.stream, err = s.NewStream(ctx, o)
		return err
	})
	return opening.stream, err
}

// blockedTask returns the Waiter of the caller if it is a task whose loop s would block. Otherwise
// it returns nil.
func blockedTask(ctx context.Context, s Session) wait.Waiter {
	if !s.Peer().Blocks {
		return nil
	}
	return wait.TaskOf(ctx)
}

// An opening is a stream that is opened for a task.
type opening struct{ stream Stream } // nil until it is opened

// Abandoned implements [wait.Abandoned]. Nobody knows the stream.
func (o *opening) Abandoned() {
	if o.stream != nil {
		o.stream.Abort(context.Canceled)
	}
}

// A blockingStream lets tasks use a stream that is no [TaskStream].
type blockingStream struct {
	Stream
	waiter wait.Waiter
	later  Frame // for the next Recv: the end that came with a message that could not be decoded
}

// Send implements [Stream]. Without a message it does not wait, so any goroutine may call it.
func (b *blockingStream) Send(f *Frame) error {
	if !f.HasMsg {
		return b.Stream.Send(f)
	}
	frozen, err := f.Msg.Freeze()
	if err != nil {
		return err
	}
	defer frozen.Free()
	own := *f
	own.Msg = frozen
	return b.outside(func() error { return b.Stream.Send(&own) })
}

// Recv implements [Stream].
func (b *blockingStream) Recv(f *Frame) error {
	f.Reset()
	if b.later.EndSend || b.later.End != nil {
		f.EndSend, f.End = b.later.EndSend, b.later.End
		b.later = Frame{}
		return nil
	}
	var got captured
	own := Frame{Sink: f.Sink}
	if f.Dst != nil {
		own.Dst, own.Codec = &got, capturing{}
	}
	err := b.outside(func() error { return b.Stream.Recv(&own) })
	f.Header = own.Header
	if own.Got {
		if err = got.decode(&f.Sink); err != nil {
			b.later.EndSend, b.later.End = own.EndSend, own.End
			return err
		}
		f.Got = true
	}
	f.EndSend, f.End = own.EndSend, own.End
	return err
}

func (b *blockingStream) outside(f func() error) error {
	defer wait.OnAbandon(b.waiter, b)()
	return wait.Outside(b.waiter, f)
}

// Abandoned implements [wait.Abandoned], for a task that waits for the peer.
func (b *blockingStream) Abandoned() { b.Abort(context.Canceled) }

// captured has the encodings of messages that were received for a task.
type captured []message.Data

// capturing is a Codec that decodes into a *captured, which keeps the encoding. It cannot encode.
type capturing struct{ message.Codec }

func (capturing) Decode(data message.Data, v any) (kept bool, err error) {
	switch {
	case data.Buffers != nil:
		data.Buffers.Ref()
	case data.Stay:
		kept = true
	default:
		data.Bytes, data.Stay = slices.Clone(data.Bytes), true
	}
	all := v.(*captured)
	*all = append(*all, data)
	return kept, nil
}

func (capturing) KeepsReferences() bool { return true }

// decode decodes the messages one after the other, and frees them. It returns the first error.
func (c captured) decode(to *message.Sink) error {
	var first error
	for _, data := range c {
		_, err := to.Decode(data)
		data.Buffers.Free() // not deferred: a codec that panics may have kept the bytes
		if first == nil {
			first = err
		}
	}
	return first
}
