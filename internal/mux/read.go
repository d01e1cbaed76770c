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

// takeIn takes in what was read, as far as there are whole frames. Its error is
// a *misdeed.
func (s *Session) takeIn() error {
	rest := s.in.b
	if !s.begun {
		if err := notMagic(rest); err != nil {
			return &misdeed{err}
		}
		if len(rest) < len(wire.Magic) {
			return nil
		}
		s.begun = true
		rest = rest[len(wire.Magic):]
	}
	for {
		f, n, err := wire.Next(rest)
		if err == nil && n > 0 {
			err = s.take(f)
		}
		if err != nil {
			return &misdeed{err}
		}
		if n == 0 {
			break
		}
		rest = rest[n:]
	}
	if len(s.late) > 0 {
		s.acceptLate()
	}
	s.keep(rest)
	return nil
}

// keep keeps the beginning of a frame for the next read, with room for the rest
// of it. What was full is made larger, so that much comes in few reads.
func (s *Session) keep(rest []byte) {
	full := len(s.in.b) == cap(s.in.b)
	switch {
	case full && s.room < maxRead:
		s.room = max(2*s.room, 128<<10) // the largest frame, with its length, at least
	case !full && len(s.in.b) < s.room/8:
		s.room = 0
	}
	if len(rest) == 0 && cap(s.in.b) != max(s.room, readBuffer) {
		s.in.free()
		s.in = nil
		return
	}
	if len(rest) > 0 && cap(s.in.b) < s.room {
		larger := newBuffer(s.room)
		larger.b = append(larger.b, rest...)
		s.in.free()
		s.in = larger
		return
	}
	s.in.b = s.in.b[:copy(s.in.b[:cap(s.in.b)], rest)]
}

// A misdeed is something that a peer must not do, or its farewell: nothing more
// is taken in.
type misdeed struct{ error }

func (m *misdeed) Unwrap() error { return m.error }

// depart ends the session after err, which a reader met.
func (s *Session) depart(err error) {
	wrong, ok := err.(*misdeed)
	if !ok {
		s.fail(s.cause(err))
		return
	}
	s.fail(wrong.error)
	// What the peer sent is read on while it is told: an unread byte would have
	// some systems throw away what was written. The connection is not closed
	// here: the writer may not be done.
	_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.Farewell))
	_, _ = io.Copy(io.Discard, s.conn)
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
	case IsGRPCServer(b):
		return ErrGRPCServer
	case bytes.HasPrefix(b, []byte("HTTP/1.")):
		return foreign("an HTTP server listens there, not a nearcall server")
	case len(b) > 1 && b[0] == 0x15 && b[1] == 3:
		return because{"the server expects TLS; use WithTransportCredentials", wire.ErrProtocol}
	}
	return fmt.Errorf("%w: the peer does not speak nearcall's protocol: it begins with %.20q", wire.ErrProtocol, b)
}

// IsGRPCServer reports whether a server that begins with b speaks HTTP/2: its first
// frame is SETTINGS.
func IsGRPCServer(b []byte) bool {
	return len(b) >= 9 && b[3] == 4 && bytes.Equal(b[5:9], []byte{0, 0, 0, 0})
}

// ErrGRPCServer ends the session of a client that has met an ordinary gRPC server.
var ErrGRPCServer error = foreign("an ordinary gRPC server listens there")

// foreign is the error for a server that speaks another protocol.
type foreign string

func (f foreign) Error() string { return string(f) }
func (foreign) Unwrap() []error { return []error{wire.ErrProtocol, link.ErrForeign} }

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", wire.ErrProtocol, fmt.Sprintf(format, args...))
}

// take does what a frame says. An error ends the session.
func (s *Session) take(f wire.Frame) error {
	if f.Kind != wire.KindHello && !s.isMet {
		return protocolError("the peer has not said hello")
	}
	if s.parts.b != nil && (f.Stream != s.parts.of || f.Kind != wire.KindPart && !f.Kind.Stream()) {
		return protocolError("another frame comes between the parts of a block")
	}
	switch {
	case f.Kind.Stream():
		return s.takeStream(f)
	case f.Kind == wire.KindPart:
		return s.takePart(f)
	case f.Kind == wire.KindHello:
		return s.takeHello(f.Body)
	}
	var after callbacks
	s.mu.Lock()
	err := s.takeControl(f, &after)
	if err == nil {
		err = s.checkOwed()
	}
	s.mu.Unlock()
	after.run()
	return err
}

// find returns the stream with the number, nil for one that is over. mu is
// held.
func (s *Session) find(id uint64) (*stream, error) {
	st := s.recent
	if st == nil || st.id != id {
		st = s.streams[id]
	}
	if st != nil {
		s.recent, st.heard = st, s.quiet.reads
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

// takeStream takes a step of a call, with the parts of its block that came before.
func (s *Session) takeStream(f wire.Frame) error {
	if s.parts.b == nil {
		return s.takeWhole(f, nil)
	}
	before := s.parts.finish(len(f.Body))
	err := s.takeWhole(f, before.b)
	before.free()
	return err
}

// takeWhole takes a step of a call that begins with before. Nothing that is kept of
// the step aliases either.
func (s *Session) takeWhole(f wire.Frame, before []byte) error {
	fromCaller := !s.own(f.Stream)
	rc, err := s.dec.Stream(f, before, fromCaller)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, unknown := s.find(f.Stream); unknown != nil && !fromCaller {
			return unknown // it opens a call with a number of this side's, and was read as an answer
		}
		if fromCaller {
			// DRAIN, which comes before BYE, must not say that this call may be made
			// again elsewhere: it would end one connection after the other.
			s.last = max(s.last, f.Stream)
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
	if err == nil && opened {
		if s.isRash() {
			s.late = append(s.late, lateCall{st, rc.Open})
			opened = false
		} else {
			s.accepting = st
		}
	}
	s.mu.Unlock()
	after.run()
	if err != nil || !opened {
		return err
	}
	s.accept(st, rc.Open)
	return nil
}

// errNoCalls is what becomes of calls to a side without an acceptor.
var errNoCalls = unprocessed{errors.New("the other side takes no calls")}

// accept asks the acceptor to take a call. Whether a handler sees it is known only
// afterwards: where the session ends meanwhile, it leaves the call to accept. The
// peer is told of a refusal. Of the session's end BYE tells it, as of that of other
// calls.
func (s *Session) accept(st *stream, o *link.CallHeader) {
	var err error = errNoCalls
	if s.acceptor != nil {
		err = s.acceptor.HandleStream(st, o)
	}
	refused := err != nil
	var after callbacks
	s.mu.Lock()
	s.accepting = nil
	if !refused {
		err = s.ended
	}
	if err != nil {
		st.abort(err, refused, &after)
		s.flush(false)
	} else {
		s.mu.Unlock()
	}
	after.run()
}

// takeStep does what a step says. mu is held.
func (s *Session) takeStep(id uint64, rc *wire.Received, cost int, after *callbacks) (st *stream, opened bool, err error) {
	if cost > s.connIn {
		return nil, false, protocolError("the peer sends more than it has credit for")
	}
	s.connIn -= cost
	s.taken += cost
	s.refund()
	if rc.Wrong != nil {
		return nil, false, s.object(id, rc, after)
	}
	if rc.Open != nil {
		st, err = s.opened(id, rc)
		opened = st != nil
	} else {
		st, err = s.find(id)
		s.answered = true
	}
	if st == nil || st.over {
		if rc.Placed && err == nil {
			s.handBack(rc.Place) // nobody receives it
		}
		return nil, false, err
	}
	if rc.Placed {
		cost += rc.Size // of the call alone: it is the peer's own memory that it waits in
	}
	return st, opened, st.take(rc, cost, after)
}

// object ends a call whose peer says what it must not, with which nothing else
// is wrong. mu is held.
func (s *Session) object(id uint64, rc *wire.Received, after *callbacks) error {
	if rc.Placed {
		s.handBack(rc.Place)
	}
	reason := because{rc.Wrong.Error(), link.ErrBroken}
	if rc.Open == nil {
		st, err := s.find(id)
		if st != nil {
			st.abort(reason, true, after)
		}
		return err
	}
	if id <= s.last {
		return protocolError("the peer opens call %d after %d", id, s.last)
	}
	s.last = id
	if !s.drained {
		code, text := resetOf(reason)
		s.control = wire.AppendReset(s.control, id, code, text)
	}
	return nil
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
	if s.opts.MaxStreams > 0 && s.calls >= s.opts.MaxStreams {
		s.control = wire.AppendReset(s.control, id, wire.ResetUnprocessed, fmt.Sprintf("no more than %d calls may be open at a time", s.opts.MaxStreams))
		return nil, nil
	}
	if rc.Timeout > 0 {
		rc.Open.Deadline = time.Now().Add(rc.Timeout)
	}
	s.calls++
	st := new(stream)
	s.begin(st, id, rc.Open.Encoding)
	s.streams[id] = st
	return st, nil
}
