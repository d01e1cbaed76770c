package web

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// A stream is the callee's side of one request: its [link.Stream].
//
// It is a pair of bounded queues between the goroutines of the callee, which call Send, Recv and
// Abort, and those of the HTTP server. The reader moves the request's body into the inbox: see
// inbox.go. The writer, which is the goroutine of the request, moves steps from the field out,
// which is a queue, to the response: see write.go. Invariants:
//
//   - Only the reader and the writer touch the request and the response, so nothing touches them
//     after the request was answered. The callee encodes and decodes on its own goroutines.
//   - Bytes that wait are bounded in each direction by the window, plus the message that
//     exceeds it. At the bound the sender, or the reader and with it the client, waits.
//   - The stream ends once: the flag over is set when the callee sends its End or when either side
//     aborts. After that no step is added, and the reader drops what it reads.
//   - The writer writes no step of an aborted stream, only the reason.
type stream struct {
	session  *session
	request  *request
	window   int    // in bytes
	begin    func() // gives the call to the acceptor, once
	encoding string // compressor of sent messages; only the callee's sender uses it
	partial  partial

	mu      sync.Mutex
	in      inbox
	out     []step // steps that wait to be written
	queued  int    // size of out and of the steps that are being written, in bytes
	over    bool
	sendErr error // why nothing more can be sent; set after the call of onAbort
	reason  error // why the stream was aborted; nil if it was not
	onAbort func(error)
	sender  wait.Cond // the callee waits here for room in the queue out
	writer  wait.Cond // the writer waits here for a step
}

// A step is added by one Send: any subset of header, message and end, in this order.
type step struct {
	header  metadata.MD // without link.EncodingKey
	message []byte      // as it is written
	has     bool        // there is a message
	packed  bool        // the message is compressed
	coding  string      // with a header or a message: the compressor of messages
	end     *link.End
}

// stepCost is the cost of a step in addition to the bytes of its message.
const stepCost = 64

func (st *step) cost() int { return len(st.message) + stepCost }

func newStream(c *session, q *request) *stream {
	return &stream{session: c, request: q, window: c.server.window(), encoding: q.replyEncoding}
}

func (s *stream) Send(f *link.Frame) error {
	st := step{header: f.Header, end: f.End}
	if f.Header != nil {
		if names := f.Header[link.EncodingKey]; len(names) > 0 {
			s.encoding = message.Compressor(names[0])
		}
	}
	st.coding = s.encoding
	if f.HasMsg {
		var err error
		if st.message, st.packed, err = s.encode(&f.Msg); err != nil {
			return err
		}
		st.has = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for f.HasMsg && s.sendErr == nil && s.queued >= s.window {
		s.sender.Wait(&s.mu, nil)
	}
	switch {
	case s.sendErr != nil:
		return s.sendErr
	case s.over: // aborted, and the callee is about to learn of it
		return s.reason
	}
	s.out = append(s.out, st)
	s.queued += st.cost()
	if f.End != nil {
		s.over = true
		s.finishLocked(link.ErrEnded)
		s.session.limitWrites() // the writer must not finish the answer before the limit is set
	}
	wait.Unpark(s.writer.Wake())
	return nil
}

// finishLocked makes sends fail at once, and receives once the bytes that have arrived were
// received. The error is why, unless receiving has ended already.
func (s *stream) finishLocked(why error) {
	s.sendErr = why
	if s.in.err == nil {
		s.in.err = why
	}
	s.in.dropping = true
	if s.in.small && !s.in.ended {
		s.session.endReads() // the writer is still reading the body: it must stop, and write the answer
	}
	wait.Unpark(s.sender.Wake())
	wait.Unpark(s.in.receiver.Wake())
	wait.Unpark(s.in.reader.Wake())
}

func (s *stream) Abort(reason error) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over, s.reason = true, reason
	s.out, s.queued = nil, 0
	f := s.onAbort
	s.session.limitWrites()
	wait.Unpark(s.writer.Wake())
	s.mu.Unlock()
	if f != nil {
		f(reason)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(reason)
}

func (s *stream) OnAbort(f func(error)) {
	s.mu.Lock()
	s.onAbort = f
	reason := s.reason
	s.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

// encode returns m as it is written: in the request's framing, and compressed if the stream's
// messages are. Empty messages are not compressed. The error is a *message.SendError.
func (s *stream) encode(m *message.Message) (b []byte, packed bool, err error) {
	prefix := s.request.kind.prefix()
	if ready, ok := m.Compressed(s.encoding); ok {
		return putPrefix(append(make([]byte, prefix, prefix+len(ready)), ready...), prefix, true), true, nil
	}
	sized, err := m.Sized()
	if err != nil {
		return nil, false, err
	}
	defer sized.Free()
	if b, err = sized.Append(make([]byte, prefix, prefix+sized.Bound())); err != nil {
		return nil, false, err
	}
	if s.encoding == "" || len(b) == prefix {
		return putPrefix(b, prefix, false), false, nil
	}
	small, err := message.Compress(b[prefix:], s.encoding)
	if err != nil {
		return nil, false, err
	}
	b = append(b[:prefix], small...)
	return putPrefix(b, prefix, true), true, nil
}

// take removes the next steps, or returns the reason if the stream was aborted. It waits until it
// can do one of these. Only the writer calls take. written is the cost of the earlier steps that
// the writer has written since the last call.
func (s *stream) take(written int) (steps []step, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if written > 0 && s.reason == nil {
		s.queued -= written
		wait.Unpark(s.sender.Wake())
	}
	for len(s.out) == 0 && s.reason == nil {
		s.writer.Wait(&s.mu, nil)
	}
	steps, s.out = s.out, nil
	return steps, s.reason
}

// isOver reports whether the stream has ended.
func (s *stream) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// abortAtDeadline aborts the stream at the request's deadline. The result stops it.
func (s *stream) abortAtDeadline() (stop func()) {
	if s.request.deadline.IsZero() {
		return func() {}
	}
	t := time.AfterFunc(time.Until(s.request.deadline), func() { s.Abort(context.DeadlineExceeded) })
	return func() { t.Stop() }
}
