package grpcgo

import (
	"context"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// Codec is the codec that a *grpc.Server with [Handler] needs.
func Codec() encoding.CodecV2 { return rawCodec{} }

// Handler returns a handler, for grpc.UnknownServiceHandler, that passes each call to the
// acceptor that accept returns for its context.
func Handler(accept func(context.Context) (link.Acceptor, error)) grpc.StreamHandler {
	return func(_ any, inner grpc.ServerStream) error {
		a, err := accept(inner.Context())
		if err != nil {
			return err
		}
		st := &callee{inner: inner, over: make(chan struct{})}
		left := context.AfterFunc(inner.Context(), func() { st.Abort(inner.Context().Err()) })
		defer left()
		if err := a.HandleStream(st, headerOf(inner)); err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		<-st.over
		return st.result()
	}
}

// headerOf returns the header of the call of s.
func headerOf(s grpc.ServerStream) *link.CallHeader {
	ctx := s.Context()
	o := &link.CallHeader{Profile: new(link.Profile)}
	o.Method, _ = grpc.MethodFromServerStream(s)
	o.Deadline, _ = ctx.Deadline()
	md, _ := metadata.FromIncomingContext(ctx)
	o.Metadata = make(metadata.MD, len(md))
	for k, vs := range md {
		switch k {
		case ":authority":
			o.Authority = vs[0]
		case "user-agent":
			o.UserAgent = vs[0]
		case "content-type":
			o.ContentSubtype = link.Subtype(vs[0])
		case "grpc-accept-encoding":
			o.Accept = strings.Join(vs, ",")
		default:
			o.Metadata[k] = vs
		}
	}
	o.Check()
	return o
}

// A callee is the callee's side of a call that a *grpc.Server has received.
// It implements [link.Stream].
type callee struct {
	side
	inner grpc.ServerStream
	over  chan struct{} // closed when the call has ended
	end   *link.End     // guarded by mu
}

// state returns the error of an operation on a call that has ended, or nil if the call goes on.
// After an abort it waits until the function that OnAbort has set has returned.
func (st *callee) state() error {
	st.mu.Lock()
	end, reason := st.end, st.reason
	st.mu.Unlock()
	if end != nil {
		return link.ErrEnded
	}
	if reason != nil {
		<-st.over
	}
	return reason
}

// result returns the error for grpc-go to end the call with.
func (st *callee) result() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.end != nil:
		return st.end.Status.Err()
	case st.inner.Context().Err() != nil:
		return status.FromContextError(st.inner.Context().Err()).Err()
	case st.reason == context.DeadlineExceeded, st.reason == context.Canceled: // the other side's timer was first
		return status.FromContextError(st.reason).Err()
	}
	if s, ok := status.FromError(st.reason); ok {
		return s.Err()
	}
	return status.Error(codes.Unavailable, st.reason.Error())
}

func (st *callee) Send(f *link.Frame) error {
	if err := st.state(); err != nil {
		return err
	}
	var m message.Message
	if f.HasMsg {
		var err error
		if m, err = f.Msg.Freeze(); err != nil {
			return err
		}
		defer m.Free()
	}
	if f.Header != nil {
		header := f.Header
		if _, named := header[link.EncodingKey]; named {
			header = header.Copy() // others may read it, too
			delete(header, link.EncodingKey)
		}
		send := st.inner.SendHeader // also if it is empty: a client may retry a call that ends without a header
		if f.HasMsg {
			send = st.inner.SetHeader
		}
		if err := send(header); err != nil && st.state() == nil {
			return err
		}
	}
	if f.HasMsg {
		if err := st.inner.SendMsg(&m); err != nil {
			return st.broken(err)
		}
	}
	if f.End != nil {
		st.inner.SetTrailer(f.End.Trailer)
		st.mu.Lock()
		first := st.end == nil && st.reason == nil
		if first {
			st.end = f.End
		}
		st.mu.Unlock()
		if first {
			close(st.over)
		}
	}
	return nil
}

func (st *callee) Recv(f *link.Frame) error {
	f.Reset()
	if f.Dst == nil {
		<-st.over
		return st.state()
	}
	var m mem.BufferSlice
	err := st.inner.RecvMsg(&m)
	switch {
	case err == io.EOF:
		f.EndSend = true
		return nil
	case err != nil:
		return st.broken(err)
	}
	return decode(m, f)
}

// broken aborts the call after an operation has failed with err, and returns the error of the
// operation.
func (st *callee) broken(err error) error {
	if over := st.inner.Context().Err(); over != nil {
		err = over
	}
	st.Abort(err)
	return st.state()
}

func (st *callee) Abort(reason error) {
	st.mu.Lock()
	if st.end != nil || st.reason != nil {
		st.mu.Unlock()
		return
	}
	st.reason = reason
	f := st.onAbort
	st.mu.Unlock()
	if f != nil {
		f(reason)
	}
	close(st.over)
}
