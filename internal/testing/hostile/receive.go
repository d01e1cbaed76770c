package hostile

import (
	"errors"

	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

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
			f.End = &link.End{Status: it.status, Trailer: it.md, Late: it.late}
			st.over = true
		case kindData:
			if f.Dst == nil || f.Got {
				s.mu.Unlock()
				return nil // the message stays until a Recv that wants it
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

// receive decodes the first message into f, and returns its credit. The caller holds the
// session's mu, which receive unlocks while it decodes.
func (st *stream) receive(f *link.Frame) error {
	s := st.session
	it := st.in[0]
	st.pop()
	st.taken += it.size + link.MessageOverhead
	var p wait.Parker
	if st.taken >= s.pipe.opts.holdsBack() && s.streams[st.id] == st {
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

// handleFrame processes a frame of this stream. An error ends the session, whose mu the
// caller holds.
func (st *stream) handleFrame(f *frame, after *callbacks) error {
	switch f.kind {
	case kindCredit:
		if f.n > uint64(st.used) {
			return errors.New("the peer gives back credit that it never had")
		}
		st.used -= int(f.n)
		if st.used < st.session.pipe.opts.granted() {
			after.unpark(&st.sender)
		}
		return nil
	case kindReset:
		st.abort(f.reason(), false, after)
		return nil
	case kindData:
		return st.handleData(f, after)
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
	st.in = append(st.in, item{kind: f.kind, md: f.md, status: f.status, late: f.kind == kindEnd && link.Passed(st.deadline)})
	after.unpark(&st.receiver)
	if f.kind == kindEnd {
		clear(st.out)
		st.out = st.out[:0]
		st.unqueue()
		st.finish(link.ErrEnded, after)
	}
	return nil
}

// handleData processes a fragment of a message.
func (st *stream) handleData(f *frame, after *callbacks) error {
	if st.lastSent || st.caller && f.flags&flagEndSend != 0 {
		return errors.New("a message arrived after the end of sending, or the callee ended sending")
	}
	if st.partial == nil && st.held >= st.session.pipe.opts.granted() {
		return errors.New("a message arrived for which there was no credit")
	}
	st.held += len(f.data)
	st.partial = append(st.partial, newFragment(f.data))
	if f.flags&flagLast == 0 {
		return nil
	}
	st.held += link.MessageOverhead
	st.lastSent = f.flags&flagEndSend != 0
	st.in = append(st.in, item{kind: kindData, msg: st.partial, size: st.partial.Len(), endSend: st.lastSent})
	st.partial = nil
	after.unpark(&st.receiver)
	return nil
}

// newFragment returns a copy of b as a buffer that is overwritten when it is freed.
func newFragment(b []byte) mem.Buffer {
	c := make([]byte, len(b), max(len(b), pooled))
	copy(c, b)
	return mem.NewBuffer(&c, poison{})
}

// pooled is the least capacity of buffers that package mem returns to their pool.
const pooled = 1<<10 + 1

// poison is a pool that overwrites the buffers that are returned to it.
type poison struct{}

// Get implements [mem.BufferPool].
func (poison) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements [mem.BufferPool].
func (poison) Put(b *[]byte) {
	for i := range *b {
		(*b)[i] = 0xa5
	}
}
