package hostile

import (
	"errors"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A stream is one side of a stream. The session's lock guards what is below
// mark.
type stream struct {
	session *session
	caller  bool
	waiter  wait.Waiter

	// mark
	id      uint64 // zero until the open is written
	onAbort func(error)
	reason  error // why it was aborted
	over    bool  // its end was sent, or received and delivered: it cannot be aborted any more

	sendErr error // nothing more can be sent, because
	used    int   // credit in use, in bytes
	out     []item
	queued  bool // the stream is in session.ready
	sender  wait.Spot

	recvErr  error // after what is in nothing more arrives, because
	in       []item
	partial  mem.BufferSlice // the beginning of a message
	held     int             // bytes that arrived and for which no credit went back
	taken    int             // of these, bytes that the receiver has taken
	header   bool            // the header arrived
	lastSent bool            // the peer sends no more messages
	receiver wait.Spot
}

// An item is a frame that waits to be written, or to be received.
type item struct {
	kind    kind
	open    *link.Open
	md      metadata.MD
	data    []byte          // of a message to be written
	msg     mem.BufferSlice // of a message that arrived
	size    int             // of that
	endSend bool
	status  *status.Status
	reason  error
}

// messageOverhead is what a message costs beside its bytes.
const messageOverhead = 5

// put has it written. The session's mu is held.
func (st *stream) put(it item) {
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
	for f.HasMsg && st.used >= s.pipe.opts.Window && st.sendErr == nil {
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
		st.used += len(data) + messageOverhead
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

// finish lets nothing more be sent or, after what has arrived, received, and
// forgets the stream. The session's mu is held.
func (st *stream) finish(why error, after *callbacks) {
	if st.sendErr == nil {
		st.sendErr = why
	}
	if st.recvErr == nil {
		st.recvErr = why
	}
	st.partial.Free()
	st.partial = nil
	after.unpark(&st.sender)
	after.unpark(&st.receiver)
	delete(st.session.streams, st.id)
	delete(st.session.live, st)
}

// Recv implements [link.Stream].
func (st *stream) Recv(f *link.Frame) error {
	f.Reset()
	s := st.session
	s.mu.Lock()
	for len(st.in) == 0 {
		if err := st.recvErr; err != nil {
			s.mu.Unlock()
			return err
		}
		st.receiver.Wait(&s.mu, st.waiter)
	}
	for first := true; len(st.in) > 0 && (first || s.rand.IntN(2) == 0); first = false {
		switch it := &st.in[0]; it.kind {
		case kindHeader:
			f.Header = it.md
		case kindEndSend:
			f.EndSend = true
		case kindEnd:
			f.End = &link.End{Status: it.status, Trailer: it.md}
			st.over = true
		case kindData:
			if f.Dst == nil || f.Got {
				s.mu.Unlock()
				return nil // it stays for a receiver that wants it
			}
			if err := st.receive(f); err != nil {
				s.mu.Unlock()
				return err
			}
			continue
		}
		st.pop()
	}
	s.mu.Unlock()
	return nil
}

func (st *stream) pop() {
	st.in[0] = item{}
	st.in = st.in[1:]
}

// receive puts the first message where f says, and gives its credit back. The
// session's mu is held, and released meanwhile.
func (st *stream) receive(f *link.Frame) error {
	s := st.session
	it := st.in[0]
	st.pop()
	st.taken += it.size + messageOverhead
	var p wait.Parker
	if st.taken >= (s.pipe.opts.Window+1)/2 && s.streams[st.id] == st {
		s.control = append(s.control, frame{kind: kindCredit, id: st.id, n: uint64(st.taken)})
		st.held -= st.taken
		st.taken = 0
		p = s.writer.Wake()
	}
	s.mu.Unlock()
	wait.Unpark(p)
	f.EndSend = it.endSend
	m := link.Encoded(it.msg)
	err := m.DecodeInto(&f.Sink)
	m.Free()
	f.Got = err == nil
	s.mu.Lock()
	return err
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

// abort ends the stream for reason, unless it has ended. tell says that the
// peer is to learn of it. The session's mu is held.
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
	st.finish(reason, after)
	if f := st.onAbort; f != nil {
		after.aborts = append(after.aborts, func() { f(reason) })
	}
}

// unqueue takes a stream that has nothing to write from those that are ready.
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

// take does what a frame of this stream says. An error ends the session, whose
// mu is held.
func (st *stream) take(f *frame, after *callbacks) error {
	switch f.kind {
	case kindCredit:
		if f.n > uint64(st.used) {
			return errors.New("the peer gives back credit that it never had")
		}
		st.used -= int(f.n)
		if st.used < st.session.pipe.opts.Window {
			after.unpark(&st.sender)
		}
		return nil
	case kindReset:
		st.abort(f.reason(), false, after)
		return nil
	case kindData:
		return st.takeData(f, after)
	case kindEndSend:
		if st.caller || st.lastSent {
			return errors.New("an end of sending arrived from the callee or twice")
		}
		st.lastSent = true
	case kindHeader:
		if !st.caller || st.header {
			return errors.New("a header arrived from the caller or twice")
		}
		st.header = true
	case kindEnd:
		if !st.caller || st.partial != nil {
			return errors.New("an end arrived from the caller or within a message")
		}
	}
	st.in = append(st.in, item{kind: f.kind, md: f.md, status: f.status})
	after.unpark(&st.receiver)
	if f.kind == kindEnd {
		clear(st.out)
		st.out = st.out[:0]
		st.unqueue()
		st.finish(link.ErrEnded, after)
	}
	return nil
}

// takeData takes a fragment of a message.
func (st *stream) takeData(f *frame, after *callbacks) error {
	if st.lastSent || st.caller && f.flags&flagEndSend != 0 {
		return errors.New("a message arrived after the end of sending, or the callee ended sending")
	}
	if st.partial == nil && st.held >= st.session.pipe.opts.Window {
		return errors.New("a message arrived for which there was no credit")
	}
	st.held += len(f.data)
	st.partial = append(st.partial, newFragment(f.data))
	if f.flags&flagLast == 0 {
		return nil
	}
	st.held += messageOverhead
	st.lastSent = f.flags&flagEndSend != 0
	st.in = append(st.in, item{kind: kindData, msg: st.partial, size: st.partial.Len(), endSend: st.lastSent})
	st.partial = nil
	after.unpark(&st.receiver)
	return nil
}

// newFragment returns a copy of b as a buffer that is overwritten once it is
// freed.
func newFragment(b []byte) mem.Buffer {
	c := make([]byte, len(b), max(len(b), pooled))
	copy(c, b)
	return mem.NewBuffer(&c, poison{})
}

// pooled is the capacity from which package mem returns a buffer to its pool.
const pooled = 1<<10 + 1

// poison is a pool that makes what it is given useless.
type poison struct{}

// Get implements [mem.BufferPool].
func (poison) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements [mem.BufferPool].
func (poison) Put(b *[]byte) {
	for i := range *b {
		(*b)[i] = 0xa5
	}
}
