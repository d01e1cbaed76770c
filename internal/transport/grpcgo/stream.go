package grpcgo

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
)

// A side is what both sides of a call have.
type side struct {
	mu      sync.Mutex
	reason  error // of Abort
	onAbort func(error)
}

// OnAbort implements [link.Stream].
func (s *side) OnAbort(f func(error)) {
	s.mu.Lock()
	s.onAbort = f
	reason := s.reason
	s.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

// decode decodes the message m into f.
func decode(m mem.BufferSlice, f *link.Frame) error {
	received := message.Encoded(m)
	err := received.DecodeInto(&f.Sink)
	received.Free()
	f.Got = err == nil
	return err
}

// A stream is a call that grpc-go makes. It implements [link.Stream].
type stream struct {
	side
	session  *Session
	inner    grpc.ClientStream
	ctx      context.Context // of inner
	cancel   context.CancelCauseFunc
	deadline time.Time // zero for none

	// Used only by the goroutine that receives.
	headerKnown bool
	late        bool // the next frame for Recv has arrived after the deadline

	ended bool // the end was received, or the stream aborted; guarded by mu
}

func (st *stream) Send(f *link.Frame) error {
	if err := st.aborted(); err != nil {
		return err
	}
	if f.HasMsg {
		m, err := f.Msg.Freeze()
		if err != nil {
			return err
		}
		defer m.Free()
		err = st.inner.SendMsg(&m)
		switch {
		case err == io.EOF:
			return link.ErrEnded
		case err != nil:
			if reason := st.aborted(); reason != nil {
				return reason
			}
			return err
		}
	}
	if f.EndSend {
		_ = st.inner.CloseSend()
	}
	return nil
}

// Recv implements [link.Stream]. grpc-go does not tell when the end of a call has arrived. So Recv
// assumes: if it still waits when the deadline passes, the rest of the call arrives after the
// deadline.
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	timely := !link.Passed(st.deadline)
	err := st.receive(f)
	if timely && link.Passed(st.deadline) {
		st.late = true
	}
	if f.End != nil {
		f.End.Late = st.late
	}
	return err
}

func (st *stream) receive(f *link.Frame) error {
	if !st.headerKnown {
		md, err := st.inner.Header()
		if md != nil {
			f.Header = md.Copy()
			delete(f.Header, "content-type")
		}
		if err == nil && f.Header == nil { // the call has ended without a header or a message
			err = st.inner.RecvMsg(new(mem.BufferSlice))
		}
		if st.headerKnown = true; err != nil {
			return st.end(f, err)
		}
		return nil // the message may come much later
	}
	if f.Dst == nil {
		// The caller wants only the end, and messages must stay unread. grpc-go cannot wait for
		// the end without reading messages, so wait for the stream's own end.
		<-st.ctx.Done()
		return st.end(f, status.FromContextError(context.Cause(st.ctx)).Err())
	}
	var m mem.BufferSlice
	if err := st.inner.RecvMsg(&m); err != nil {
		return st.end(f, err)
	}
	return decode(m, f)
}

// end puts the end of the call, with err as grpc-go reports it, into f. It returns the reason
// if the call was aborted before it had ended with OK.
func (st *stream) end(f *link.Frame, err error) error {
	if errors.Is(err, link.ErrUnprocessed) {
		st.Abort(err)
	}
	if reason := st.aborted(); reason != nil && err != io.EOF {
		return reason
	}
	f.End = &link.End{Trailer: st.inner.Trailer()}
	if err != io.EOF {
		f.End.Status = status.Convert(err)
	}
	f.End.Local = dropOwnKeys(f.End.Trailer, f.End.Status)
	st.mu.Lock()
	st.ended = true
	st.mu.Unlock()
	st.finish()
	return nil
}

// finish releases what the stream uses.
func (st *stream) finish() {
	st.cancel(nil)
	s := st.session
	s.mu.Lock()
	delete(s.live, st)
	s.mu.Unlock()
	s.endIfIdle()
}

func (st *stream) aborted() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.reason
}

func (st *stream) Abort(reason error) {
	st.mu.Lock()
	if st.ended {
		st.mu.Unlock()
		return
	}
	st.ended, st.reason = true, reason
	f := st.onAbort
	st.mu.Unlock()
	st.finish()
	if f != nil {
		f(reason)
	}
}

// rawCodec is the codec of messages that are encoded already. It implements [encoding.CodecV2].
type rawCodec struct{}

var errNotRaw = errors.New("grpcgo: the message is not in encoded form")

// Name implements [encoding.CodecV2]. Without a name the content-type has no subtype.
func (rawCodec) Name() string { return "" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message.Message)
	if !ok {
		return nil, errNotRaw
	}
	data := m.Data()
	data.Ref() // grpc-go frees it
	return data, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return errNotRaw
	}
	data.Ref()
	*m = data
	return nil
}
