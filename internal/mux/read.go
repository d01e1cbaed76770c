package mux

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// readBuffer is what a connection reads into, in bytes. A frame that is larger
// has it grow, once.
const readBuffer = 16 << 10

// readAll takes in what the peer sends until the connection ends.
func (s *Session) readAll() {
	_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.Handshake))
	buf := make([]byte, 0, readBuffer)
	magic := false
	for {
		n, err := s.conn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		rest := buf
		if !magic && n > 0 {
			switch wrong := notMagic(buf); {
			case wrong != nil:
				s.discard(wrong)
				return
			case len(buf) >= len(wire.Magic):
				magic = true
				rest = buf[len(wire.Magic):]
			}
		}
		if magic {
			var wrong error
			if rest, wrong = s.takeAll(rest); wrong != nil {
				s.discard(wrong)
				return
			}
		}
		if err != nil {
			s.fail(s.cause(err))
			return
		}
		room := cap(buf)
		if len(rest) == room {
			room = wire.MaxFrame + 2 // the largest frame, with its length
		}
		if room > cap(buf) {
			rest = append(make([]byte, 0, room), rest...)
			buf = rest
		} else {
			buf = buf[:copy(buf[:cap(buf)], rest)]
		}
	}
}

// discard ends the session for reason, and reads on while the peer is told: an
// unread byte would have some systems throw away what was written.
func (s *Session) discard(reason error) {
	s.fail(reason)
	_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.Farewell))
	_, _ = io.Copy(io.Discard, s.conn)
	// The connection is not closed here: the writer may not be done.
}

var errNotMet = errors.New("the peer has not said hello in time")

// cause returns why the connection has ended, where err is what Read returned.
func (s *Session) cause(err error) error {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	var timeout interface{ Timeout() bool }
	late := errors.As(err, &timeout) && timeout.Timeout()
	if late && broken != nil {
		return broken
	}
	select {
	case <-s.met:
	default:
		if late {
			return errNotMet
		}
		if err == io.EOF {
			return errors.New("the peer closed the connection before it said hello")
		}
	}
	if err == io.EOF {
		return errors.New("the peer closed the connection")
	}
	return err
}

// notMagic returns what is wrong with the beginning of what the peer sends.
func notMagic(b []byte) error {
	n := min(len(b), len(wire.Magic))
	if string(b[:n]) == wire.Magic[:n] {
		return nil
	}
	switch {
	case len(b) < 9:
	case b[3] == 4 && bytes.Equal(b[5:9], []byte{0, 0, 0, 0}): // an HTTP/2 SETTINGS frame
		return fmt.Errorf("%w: an ordinary gRPC server answers here; dial grpc:TARGET", wire.ErrProtocol)
	case bytes.HasPrefix(b, []byte("HTTP/1.")):
		return fmt.Errorf("%w: an HTTP server answers here", wire.ErrProtocol)
	}
	if len(b) > 1 && b[0] == 0x15 && b[1] == 3 {
		return fmt.Errorf("%w: the peer expects TLS; use transport credentials", wire.ErrProtocol)
	}
	return fmt.Errorf("%w: the peer begins with %.20q, not with nearcall's line", wire.ErrProtocol, b)
}

// takeAll takes in the frames in b, and returns what is left.
func (s *Session) takeAll(b []byte) ([]byte, error) {
	for {
		f, n, err := wire.Next(b)
		if err != nil || n == 0 {
			return b, err
		}
		if err := s.take(f); err != nil {
			return nil, err
		}
		b = b[n:]
	}
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrProtocol, fmt.Sprintf(format, args...))
}

// take does what a frame says. An error ends the session.
func (s *Session) take(f wire.Frame) error {
	if f.Kind != wire.KindHello && !link.IsClosed(s.met) {
		return protocolError("the peer has not said hello")
	}
	if s.parts != nil && (f.Stream != s.partsOf || f.Kind != wire.KindPart && !f.Kind.Stream()) {
		return protocolError("another frame comes between the parts of a block")
	}
	switch {
	case f.Kind.Stream():
		return s.takeStream(f)
	case f.Kind == wire.KindPart:
		if len(s.parts)+len(f.Body) > s.opts.Block {
			return protocolError("a block is larger than the %d bytes that were said to be taken", s.opts.Block)
		}
		if s.parts == nil {
			s.parts = []byte{} // an empty PART is one, too
		}
		s.parts, s.partsOf = append(s.parts, f.Body...), f.Stream
		return nil
	case f.Kind == wire.KindHello:
		return s.takeHello(f.Body)
	}
	var after callbacks
	s.mu.Lock()
	err := s.takeControl(f, &after)
	if err == nil {
		err = s.checkOwed()
	}
	after.unpark(&s.writer)
	s.mu.Unlock()
	after.run()
	return err
}

// maxOwed is how much PONGs, RESETs and CREDITs may come to that a peer asked
// for and does not read, in bytes.
const maxOwed = 4 << 20

// checkOwed finds a peer that sends and does not read. mu is held.
func (s *Session) checkOwed() error {
	if len(s.control) > maxOwed {
		return fmt.Errorf("the peer does not read the %d bytes that it is owed", len(s.control))
	}
	return nil
}

func (s *Session) takeHello(body []byte) error {
	h, err := wire.ParseHello(body)
	if err != nil {
		return err
	}
	if link.IsClosed(s.met) {
		return protocolError("the peer says hello twice")
	}
	var after callbacks
	s.mu.Lock()
	if s.broken == nil {
		_ = s.conn.SetReadDeadline(time.Time{})
	}
	for st := range s.live {
		st.credit += h.Stream - s.hello.Stream // no overflow: no CREDIT came before
		after.unpark(&st.sender)
		st.queue()
	}
	err = s.paid(h.Connection - s.hello.Connection)
	s.hello = h
	after.unpark(&s.writer)
	s.mu.Unlock()
	after.run()
	close(s.met)
	return err
}

// takeControl takes a frame that carries no part of a call. mu is held.
func (s *Session) takeControl(f wire.Frame, after *callbacks) error {
	switch f.Kind {
	case wire.KindCredit:
		n, err := wire.ParseCredit(f.Body)
		if err != nil {
			return err
		}
		if f.Stream == 0 {
			return s.paid(n)
		}
		st, err := s.find(f.Stream)
		if st != nil {
			if err := addCredit(&st.credit, n); err != nil {
				return err
			}
			st.unpaid = max(st.unpaid-n, 0)
			st.queue()
			after.unpark(&st.sender)
		}
		return err
	case wire.KindReset:
		code, text, err := wire.ParseReset(f.Body)
		if err != nil {
			return err
		}
		st, err := s.find(f.Stream)
		if st != nil {
			st.unwanted(reasonOf(code, text), after)
		}
		return err
	case wire.KindPing:
		data, err := wire.ParsePing(f.Body)
		if err == nil {
			s.control = wire.AppendPing(s.control, wire.KindPong, data)
		}
		return err
	case wire.KindPong:
		return second(wire.ParsePing(f.Body))
	case wire.KindDrain:
		last, err := wire.ParseDrain(f.Body)
		if err == nil {
			s.takeDrain(last, after)
		}
		return err
	case wire.KindBye:
		code, text, err := wire.ParseBye(f.Body)
		if err != nil {
			return err
		}
		return &farewell{code, text}
	}
	return nil // an extension
}

func second[A any](_ A, err error) error { return err }

// A farewell is what the peer's BYE says.
type farewell struct {
	code wire.ByeCode
	text string
}

func (f *farewell) Error() string {
	if f.text == "" {
		return "the peer ended the connection"
	}
	return f.text
}

// takeDrain takes in that the peer takes no more calls, and has seen none after
// last. mu is held.
func (s *Session) takeDrain(last uint64, after *callbacks) {
	reason := errors.New("the peer is going away")
	s.refuse(reason)
	for st := range s.live {
		if st.caller && (st.id == 0 || st.id > last) {
			st.abort(unprocessed{reason}, false, after)
		}
	}
}

// find returns the stream with the number, nil for one that is over. mu is
// held.
func (s *Session) find(id uint64) (*stream, error) {
	if st := s.streams[id]; st != nil {
		return st, nil
	}
	last := s.last
	if s.own(id) {
		last = s.lastOwn
	}
	if id > last {
		return nil, protocolError("the peer speaks of call %d, which was not opened", id)
	}
	return nil, nil
}

// own reports whether this side opens the calls with such a number.
func (s *Session) own(id uint64) bool { return s.opts.Client == (id%2 == 1) }

// takeStream takes a step of a call.
func (s *Session) takeStream(f wire.Frame) error {
	fromCaller := !s.own(f.Stream)
	before := s.parts
	s.parts = nil
	rc, err := s.dec.Stream(f, before, fromCaller)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, unknown := s.find(f.Stream); unknown != nil && !fromCaller {
			return unknown // it opens a call with a number of this side's, and was read as an answer
		}
		return err
	}
	cost := len(rc.Data)
	if rc.Begins {
		cost += wire.MessageCost
	}
	var after callbacks
	s.mu.Lock()
	st, opened, err := s.takeStep(f.Stream, &rc, cost, &after)
	if err == nil {
		err = s.checkOwed()
	}
	after.unpark(&s.writer)
	s.mu.Unlock()
	after.run()
	if err != nil || !opened {
		return err
	}
	if s.acceptor == nil {
		st.Abort(unprocessed{errors.New("this side takes no calls")})
	} else if err := s.acceptor.Accept(st, rc.Open); err != nil {
		st.Abort(err)
	}
	return nil
}

// takeStep does what a step says. mu is held.
func (s *Session) takeStep(id uint64, rc *wire.Received, cost int, after *callbacks) (st *stream, opened bool, err error) {
	if cost > s.connIn {
		return nil, false, protocolError("the peer sends more than it has credit for")
	}
	s.connIn -= cost
	if s.taken += cost; s.taken >= s.opts.ConnWindow/4 {
		s.control = wire.AppendCredit(s.control, 0, s.taken)
		s.connIn += s.taken
		s.taken = 0
	}
	if rc.Open != nil {
		if st, err = s.opened(id, rc); st == nil {
			return nil, false, err
		}
		opened = true
	} else if st, err = s.find(id); st == nil {
		return nil, false, err
	}
	if st.over {
		return nil, false, nil
	}
	return st, opened, st.take(rc, cost, after)
}

// opened makes a stream of a call that the peer opens. It returns none for one
// that is not taken. mu is held.
func (s *Session) opened(id uint64, rc *wire.Received) (*stream, error) {
	if id <= s.last {
		return nil, protocolError("the peer opens call %d after %d", id, s.last)
	}
	s.last = id
	if s.drained {
		return nil, nil // DRAIN was on its way: the peer knows that it is not processed
	}
	if s.opts.Calls > 0 && s.calls >= s.opts.Calls {
		s.control = wire.AppendReset(s.control, id, wire.ResetUnprocessed, fmt.Sprintf("no more than %d calls may be open at a time", s.opts.Calls))
		return nil, nil
	}
	if rc.Timeout > 0 {
		rc.Open.Deadline = time.Now().Add(rc.Timeout)
	}
	s.calls++
	st := &stream{session: s, id: id, encoding: rc.Open.Encoding, credit: s.hello.Stream, in: inbox{credit: s.opts.Window}}
	s.streams[id] = st
	s.live[st] = struct{}{}
	return st, nil
}
