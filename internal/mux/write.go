package mux

import (
	"time"

	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// maxBatch is how many bytes are collected for one Write, and a frame more.
const maxBatch = 128 << 10

// writing is what there is to write. It is guarded by the session's mu.
type writing struct {
	control []byte // frames of the session, and those that need no turn
	ready   turns  // of those with something to write
	starved turns  // of those that were ready, and wait for the connection's credit
	connOut int    // the connection's credit
	bye     []byte // the last frame, once the session has ended
	broken  error  // why nothing more can be written, though the session has not ended
	lost    bool   // write nothing more
	writer  wait.Spot
	enc     wire.Encoder
}

// A turns is a queue of streams. A stream is in one at most, once, and leaves
// it at once when it has nothing more to write, so that calls that are made and
// given up while the writer is stuck leave nothing behind.
type turns struct{ first, last *stream }

func (q *turns) push(st *stream) {
	st.turns, st.prev = q, q.last
	if q.last == nil {
		q.first = st
	} else {
		q.last.next = st
	}
	q.last = st
}

func (q *turns) remove(st *stream) {
	if st.prev == nil {
		q.first = st.next
	} else {
		st.prev.next = st.next
	}
	if st.next == nil {
		q.last = st.prev
	} else {
		st.next.prev = st.prev
	}
	st.turns, st.prev, st.next = nil, nil, nil
}

// writeAll writes what there is to write until the session ends.
func (s *Session) writeAll() {
	var b []byte
	for {
		var last bool
		if b, last = s.collect(b[:0]); len(b) == 0 {
			_ = s.conn.Close()
			return
		}
		if _, err := s.conn.Write(b); err != nil {
			s.cut(err)
			return
		}
		if last {
			s.closeWrite()
			return
		}
		if cap(b) > 2*maxBatch {
			b = nil
		}
	}
}

// lastWords is how long a peer that cannot be written to may take to be read to
// the end.
const lastWords = time.Second

// cut takes in that nothing more can be written. The reader ends the session,
// with what the peer's BYE says where there is one: a peer that has gone breaks
// the way to it at the same time as it says why.
func (s *Session) cut(err error) {
	s.mu.Lock()
	if s.ended == nil {
		s.broken = err
		_ = s.conn.SetReadDeadline(time.Now().Add(lastWords))
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.fail(err)
}

// closeWrite lets the peer read to the end what was written, where a connection
// can be closed one way, and the reader see the peer's end.
func (s *Session) closeWrite() {
	if c, ok := s.conn.(interface{ CloseWrite() error }); !ok || c.CloseWrite() != nil {
		_ = s.conn.Close()
	}
}

// collect returns the next frames. It waits for the first, and returns none
// when nothing more can be written. last says that the session has ended, and
// that these are its last.
func (s *Session) collect(b []byte) (_ []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.lost {
			return nil, true
		}
		b = append(b, s.control...)
		s.control = s.control[:0]
		if cap(s.control) > maxBatch {
			s.control = nil
		}
		for len(b) < maxBatch && s.ready.first != nil {
			b = s.turn(b)
		}
		if s.bye != nil && s.ready.first == nil && len(s.live) == 0 {
			return append(b, s.bye...), true
		}
		if len(b) > 0 {
			return b, false
		}
		s.writer.Wait(&s.mu, nil)
	}
}

// turn appends one frame of the first stream that is ready. mu is held.
func (s *Session) turn(b []byte) []byte {
	st := s.ready.first
	s.ready.remove(st)
	step := &st.out[0]
	if step.Open != nil && st.id == 0 {
		s.number(st)
		if d := step.Open.Deadline; !d.IsZero() {
			step.Timeout = max(time.Until(d), 1)
		}
	}
	step.Stream = st.id
	n := len(b)
	b, cost := s.enc.Append(b, step, max(min(st.credit, s.connOut), 0))
	st.credit -= cost
	s.connOut -= cost
	if step.Done() {
		st.out[0] = wire.Step{}
		if st.out = st.out[1:]; len(st.out) == 0 {
			st.out = nil
			if st.over {
				st.forget()
			}
		}
	}
	switch {
	case len(b) > n:
		st.queue()
	case s.connOut <= wire.MessageCost:
		s.starved.push(st)
	}
	return b
}

// number gives a call of this side's its number. mu is held.
func (s *Session) number(st *stream) {
	switch {
	case s.lastOwn > 0:
		s.lastOwn += 2
	case s.opts.Client:
		s.lastOwn = 1
	default:
		s.lastOwn = 2
	}
	st.id = s.lastOwn
	s.streams[st.id] = st
}

// paid takes in credit of the connection. mu is held.
func (s *Session) paid(n int) error {
	if err := addCredit(&s.connOut, n); err != nil {
		return err
	}
	for s.starved.first != nil {
		st := s.starved.first
		s.starved.remove(st)
		s.ready.push(st)
	}
	return nil
}

func addCredit(to *int, n int) error {
	if n > wire.MaxCredit-*to {
		return protocolError("more credit than %d", wire.MaxCredit)
	}
	*to += n
	return nil
}
