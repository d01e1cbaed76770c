package hostile

import (
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A stream is one side's end of a stream.
type stream struct {
	session  *session
	caller   bool
	deadline time.Time // of a call of this side; zero for none
	waiter   wait.Waiter

	// Guarded by session.mu.
	id      uint64 // zero until the open is written
	onAbort func(error)
	reason  error // of the abort; nil before
	over    bool  // the end was sent, or received by the caller: no abort is possible any more

	// Guarded by session.mu: sending.
	sendErr error // not nil once nothing more can be sent
	used    int   // credit in use, in bytes
	out     []item
	queued  bool // the stream is in session.ready
	sender  wait.Cond

	// Guarded by session.mu: receiving.
	recvErr  error // not nil once nothing more arrives after in
	in       []item
	partial  mem.BufferSlice // fragments of an incomplete message
	held     int             // bytes that arrived and whose credit was not returned
	taken    int             // those of them that the receiver has received
	header   bool            // the header arrived
	lastSent bool            // the peer sends no more messages
	receiver wait.Cond
}

// An item is a frame that waits to be written, or to be received.
type item struct {
	kind    kind
	open    *link.CallHeader
	md      metadata.MD
	data    []byte          // of a message to be written
	msg     mem.BufferSlice // of a message that arrived
	size    int             // of msg, in bytes
	endSend bool
	status  *status.Status
	late    bool // the end arrived after the deadline
	reason  error
}

// put queues it for writing, unless the stream was aborted. The caller holds the session's
// mu.
func (st *stream) put(it item) {
	if st.reason != nil && it.kind != kindReset {
		return // the peer ignores it
	}
	st.out = append(st.out, it)
	if !st.queued {
		st.queued = true
		st.session.ready = append(st.session.ready, st)
	}
}

// Send implements [link.Stream].
func (st *stream) Send(f *link.Frame) error {
	var data []byte
	if f.HasMsg {
		var err error
		if data, err = f.Msg.Append(nil); err != nil {
			return err
		}
	}
	s := st.session
	s.mu.Lock()
	for f.HasMsg && st.used >= s.pipe.opts.granted() && st.sendErr == nil {
		st.sender.Wait(&s.mu, st.waiter)
	}
	if err := st.sendErr; err != nil {
		s.mu.Unlock()
		return err
	}
	if f.Header != nil {
		st.put(item{kind: kindHeader, md: f.Header})
	}
	if f.HasMsg {
		st.used += len(data) + link.MessageOverhead
		st.put(item{kind: kindData, data: data, endSend: f.EndSend})
	} else if f.EndSend {
		st.put(item{kind: kindEndSend})
	}
	var after callbacks
	if f.End != nil {
		st.put(item{kind: kindEnd, md: f.End.Trailer, status: f.End.Status})
		st.over = true
		st.finish(link.ErrEnded, &after)
	}
	after.unpark(&s.writer)
	s.mu.Unlock()
	after.run()
	return nil
}

// unregister removes the stream from the session, so that nothing more arrives for it. The
// caller holds the session's mu.
func (st *stream) unregister() {
	st.partial.Free()
	st.partial = nil
	delete(st.session.streams, st.id)
	delete(st.session.live, st)
}

// finish makes sends fail with why, and receives once all that arrived was received. The
// caller holds the session's mu.
func (st *stream) finish(why error, after *callbacks) {
	st.unregister()
	if st.sendErr == nil {
		st.sendErr = why
	}
	if st.recvErr == nil {
		st.recvErr = why
	}
	after.unpark(&st.sender)
	after.unpark(&st.receiver)
}

// Abort implements [link.Stream].
func (st *stream) Abort(reason error) {
	var after callbacks
	s := st.session
	s.mu.Lock()
	st.abort(reason, true, &after)
	after.unpark(&s.writer)
	s.mu.Unlock()
	after.run()
}

// abort ends the stream with reason, unless it has ended. tell means that the peer gets a
// reset. The caller holds the session's mu.
func (st *stream) abort(reason error, tell bool, after *callbacks) {
	if st.over || st.reason != nil {
		return
	}
	st.reason = reason
	clear(st.out)
	st.out = st.out[:0]
	if tell && st.id != 0 && st.session.streams[st.id] == st {
		st.put(item{kind: kindReset, reason: reason})
	}
	if len(st.out) == 0 {
		st.unqueue()
	}
	st.unregister()
	f := st.onAbort
	switch {
	case f == nil:
		st.finish(reason, after)
	case st.caller:
		st.finish(reason, after)
		after.last = append(after.last, func() { f(reason) })
	default:
		after.first = append(after.first, func() {
			f(reason)
			st.unblock(reason)
		})
	}
}

// unblock ends the waits of a callee, after OnAbort's function was called.
func (st *stream) unblock(reason error) {
	var after callbacks
	st.session.mu.Lock()
	st.finish(reason, &after)
	st.session.mu.Unlock()
	after.run()
}

// unqueue removes the stream from the session's ready ones, if it is there.
func (st *stream) unqueue() {
	if !st.queued {
		return
	}
	st.queued = false
	ready := st.session.ready
	for i := range ready {
		if ready[i] == st {
			ready[i] = ready[len(ready)-1]
			ready[len(ready)-1] = nil
			st.session.ready = ready[:len(ready)-1]
			return
		}
	}
}

// OnAbort implements [link.Stream].
func (st *stream) OnAbort(f func(error)) {
	s := st.session
	s.mu.Lock()
	st.onAbort = f
	reason := st.reason
	s.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

// SetWaiter implements [link.Stream].
func (st *stream) SetWaiter(w wait.Waiter) { st.waiter = w }
