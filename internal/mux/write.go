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
	control []byte    // frames of the session, and those that need no turn
	ready   []*stream // those with something in out, each once, in the order of their turns
	starved []*stream // those that were ready, and wait for the connection's credit
	connOut int       // the connection's credit
	bye     []byte    // the last frame, once the session has ended
	lost    bool      // write nothing more
	writer  wait.Spot
	enc     wire.Encoder
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
			s.fail(err) // the reader may still find out more, but not for those who wait
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
		for len(b) < maxBatch && len(s.ready) > 0 {
			b = s.turn(b)
		}
		if s.bye != nil && len(s.ready) == 0 && len(s.live) == 0 {
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
	st := s.ready[0]
	s.ready[0] = nil
	s.ready = s.ready[1:]
	st.queued = false
	if len(st.out) == 0 {
		return b // it was aborted
	}
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
		s.starved = append(s.starved, st)
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

// paid takes in a CREDIT of the connection. mu is held.
func (s *Session) paid(n int) {
	s.connOut = min(s.connOut, wire.MaxUint-n) + n
	for i, st := range s.starved {
		st.queue()
		s.starved[i] = nil
	}
	s.starved = s.starved[:0]
}
