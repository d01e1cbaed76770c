// Package relay passes the calls that arrive on one session on to another. Messages stay encoded.
package relay

import (
	"cmp"
	"context"
	"errors"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// An Acceptor is a [link.Acceptor] that passes each call that it accepts on to another session.
type Acceptor struct {
	To link.Session

	Limit int // of messages that the peer sends, in bytes; 0 for none

	// Spare returns another session, for calls that were on their way when the peer drained the
	// first one. Spare is nil if there is no other session.
	Spare func(context.Context) (link.Session, error)

	// Go runs a function on a goroutine, which ends with the call.
	Go func(func())
}

func (*Acceptor) Closed(error) {}

func (*Acceptor) Gone() {}

func (*Acceptor) Terms() link.Terms { return link.Terms{} }

func (r *Acceptor) HandleStream(callee link.Stream, o *link.CallHeader) error {
	header := *o
	header.Caller = nil
	ctx, cancel := context.WithCancelCause(context.Background())
	callee.OnAbort(cancel)
	r.Go(func() {
		if !header.Deadline.IsZero() {
			bounded, stop := context.WithDeadline(ctx, header.Deadline)
			defer stop()
			ctx = bounded
		}
		r.pass(ctx, callee, &header)
	})
	return nil
}

// pass makes the call that arrived as the stream callee, and passes its frames on in both
// directions. ctx ends when callee is aborted, with the reason as its cause. It also ends at the
// call's deadline, because both sides may be silent then while the directions wait for them.
//
// Each direction has a goroutine, so that a receiver that stops receiving blocks only its own
// sender. pass learns from Recv that the stream caller was aborted, so that it first passes on
// frames that arrived before the abort.
func (r *Acceptor) pass(ctx context.Context, callee link.Stream, o *link.CallHeader) {
	caller, err := r.open(ctx, o)
	switch {
	case errors.Is(err, link.ErrOneWay):
		_ = callee.Send(&link.Frame{End: EndOf(status.Errorf(codes.Unimplemented, "%v; a client takes calls if it was made with WithServer", err))})
		return
	case err != nil:
		callee.Abort(cmp.Or(context.Cause(ctx), err))
		return
	}
	left := context.AfterFunc(ctx, func() {
		why := context.Cause(ctx)
		caller.Abort(why)
		callee.Abort(why)
	})
	defer left()
	r.Go(func() { forwardRequests(callee, caller, cmp.Or(r.Limit, math.MaxInt)) })
	forwardReplies(caller, callee)
}

// open opens the stream of a call that has arrived. The caller may be unable to make the call
// again, so if the session was drained meanwhile, open makes the call on a spare one.
func (r *Acceptor) open(ctx context.Context, o *link.CallHeader) (caller link.Stream, err error) {
	const most = 10 // attempts, because each spare session may be drained as well
	for s, n := r.To, 1; ; n++ {
		if caller, err = s.NewStream(ctx, o); !errors.Is(err, link.ErrUnprocessed) || !link.IsClosed(s.Done()) || r.Spare == nil || n == most {
			return caller, err
		}
		other, failed := r.Spare(ctx)
		if failed != nil {
			return nil, err
		}
		s = other
	}
}

// forwardRequests passes on the frames of the caller's side.
func forwardRequests(from, to link.Stream, limit int) {
	for {
		f, err := receive(from, limit)
		if end := endOfMessage(err); end != nil {
			_ = from.Send(&link.Frame{End: end})
			to.Abort(context.Canceled)
		}
		// If a stream has ended or was aborted, pass or forwardReplies tells the other one.
		if err != nil || to.Send(&f) != nil || f.EndSend {
			return
		}
	}
}

// forwardReplies passes on the frames of the callee's side, until the call ends.
func forwardReplies(from, to link.Stream) {
	for {
		f, err := receive(from, math.MaxInt)
		if end := endOfMessage(err); end != nil {
			_ = to.Send(&link.Frame{End: end})
			from.Abort(context.Canceled)
			return
		}
		if err != nil {
			to.Abort(err)
			return
		}
		if err := to.Send(&f); err != nil {
			from.Abort(err)
			return
		}
		if f.End != nil {
			return
		}
	}
}

// receive receives a frame to pass on.
func receive(from link.Stream, limit int) (link.Frame, error) {
	var data []byte
	in := link.Frame{Sink: message.Sink{Dst: &data, Codec: rawCodec{}, Limit: limit}}
	err := from.Recv(&in)
	out := link.Frame{Header: in.Header, EndSend: in.EndSend, End: in.End, HasMsg: in.Got}
	if in.Got {
		out.Msg = message.Encoded(mem.BufferSlice{mem.SliceBuffer(data)})
	}
	return out, err
}

// endOfMessage returns the end, in grpc-go's words, of a call with a message that could not be
// decompressed or is larger than the limit. It returns nil if err is another error.
func endOfMessage(err error) *link.End {
	var c *message.CompressionError
	var r *message.RecvError
	switch {
	case errors.As(err, &c):
		return &link.End{Status: status.Newf(codes.Internal, "grpc: %v", c)}
	case errors.As(err, &r) && r.Inflated:
		return &link.End{Status: status.Newf(codes.ResourceExhausted, "grpc: received message after decompression larger than max %d", r.Limit)}
	case errors.As(err, &r) && r.Err == nil:
		return &link.End{Status: status.Newf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", r.Size, r.Limit)}
	}
	return nil
}

// EndOf returns the end of a call that fails with err.
func EndOf(err error) *link.End { return &link.End{Status: status.Convert(err)} }

// rawCodec decodes messages into a *[]byte, in encoded form. It cannot encode.
type rawCodec struct{ message.Codec }

func (rawCodec) Decode(data message.Data, v any) (kept bool, err error) {
	*v.(*[]byte) = data.Copy()
	return false, nil
}

func (rawCodec) KeepsReferences() bool { return false }
