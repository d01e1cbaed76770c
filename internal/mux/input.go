package mux

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// handleInput handles all complete frames in s.reading.in, and then the calls that they have opened.
func (s *Session) handleInput() error {
	rest := s.reading.in.B
	if !s.reading.begun {
		if err := notMagic(rest); err != nil {
			return err
		}
		if len(rest) < len(wire.Magic) {
			return nil
		}
		s.reading.begun = true
		rest = rest[len(wire.Magic):]
	}
	for {
		n, err := s.handlePlain(rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
		f, n, err := wire.Next(rest)
		if err == nil && n > 0 {
			err = s.handleFrame(f)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		rest = rest[n:]
	}
	s.offerNewCalls()
	s.keepPartialFrame(rest)
	return nil
}

// keepPartialFrame moves the bytes in rest, which begin an incomplete frame, to the start of a
// buffer with room for the next read. If the last read filled its buffer, the next buffer is
// larger, up to maxRead, so that large input takes few reads.
func (s *Session) keepPartialFrame(rest []byte) {
	full := len(s.reading.in.B) == cap(s.reading.in.B)
	switch {
	case full && s.reading.room < maxRead:
		s.reading.room = max(2*s.reading.room, 128<<10) // at least the largest frame with its length field
	case !full && len(s.reading.in.B) < s.reading.room/8:
		s.reading.room = 0
	}
	if len(rest) == 0 && cap(s.reading.in.B) != max(s.reading.room, readBuffer) {
		s.reading.in.Free()
		s.reading.in = nil
		return
	}
	if len(rest) > 0 && cap(s.reading.in.B) < s.reading.room {
		larger := newBuffer(s.reading.room)
		larger.B = append(larger.B, rest...)
		s.reading.in.Free()
		s.reading.in = larger
		return
	}
	s.reading.in.B = s.reading.in.B[:copy(s.reading.in.B[:cap(s.reading.in.B)], rest)]
}

// An inputError is a violation of the protocol, or the peer's BYE. No further input is handled.
type inputError struct{ error }

func (m *inputError) Unwrap() error { return m.error }

// endReading ends the session after a reader's error err.
func (s *Session) endReading(err error) {
	wrong, ok := err.(*inputError)
	if !ok {
		s.fail(s.readErrorReason(err))
		return
	}
	s.fail(wrong.error)
	// Read and discard the peer's input until it has read our BYE: if a connection is
	// closed with unread input, some systems discard what was written. The connection
	// stays open here, because the writer might still use it.
	_ = s.conn.SetReadDeadline(time.Now().Add(s.opts.CloseTimeout))
	_, _ = io.Copy(io.Discard, s.conn)
}

var errNotMet = errors.New("the peer did not complete the handshake in time")

// readErrorReason returns the reason for ending the session if Read returned err.
func (s *Session) readErrorReason(err error) error {
	s.mu.Lock()
	broken := s.writing.broken
	s.mu.Unlock()
	var timeout interface{ Timeout() bool }
	late := errors.As(err, &timeout) && timeout.Timeout()
	if late && broken != nil {
		return broken
	}
	met := link.IsClosed(s.helloReceived)
	switch {
	case late && !met:
		return errNotMet
	case err == io.EOF && !met:
		return errors.New("the peer closed the connection during the handshake")
	}
	if err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	// A peer sends BYE before it closes the connection. Without BYE its process has died.
	if s.opts.Client {
		return errors.New("connection lost (the server may have crashed)")
	}
	return errors.New("connection lost (the client may have exited)")
}

// notMagic returns nil if b begins like the protocol's first line, and otherwise an error that
// names the peer's protocol, as far as b tells.
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
		return encoded.Because{Text: "the server expects TLS; use WithTransportCredentials", Kind: wire.ErrProtocol}
	}
	return fmt.Errorf("%w: the peer does not speak nearcall's protocol: it begins with %.20q", wire.ErrProtocol, b)
}

// IsGRPCServer reports whether a server whose output begins with b speaks HTTP/2: its
// first frame is SETTINGS.
func IsGRPCServer(b []byte) bool {
	return len(b) >= 9 && b[3] == 4 && bytes.Equal(b[5:9], []byte{0, 0, 0, 0})
}

// ErrGRPCServer is why a client's session ends if it has connected to an ordinary gRPC server.
var ErrGRPCServer error = foreign("an ordinary gRPC server listens there")

// foreign is the error for a server that speaks another protocol.
type foreign string

func (f foreign) Error() string { return string(f) }
func (foreign) Unwrap() []error { return []error{wire.ErrProtocol, link.ErrForeign} }

// handleFrame handles one frame. An error ends the session.
func (s *Session) handleFrame(f wire.Frame) error {
	if f.Kind != wire.KindHello && !s.reading.isMet {
		return wire.ProtocolError("the peer has not said hello")
	}
	if s.reading.parts.b != nil && (f.Stream != s.reading.parts.of || f.Kind != wire.KindPart && !f.Kind.Stream()) {
		return wire.ProtocolError("another frame comes between the parts of a block")
	}
	if f.Kind.Stream() || f.Kind == wire.KindPart {
		if err := s.checkOpened(f.Stream); err != nil {
			return err
		}
	}
	switch {
	case f.Kind.Stream():
		return s.handleStream(f)
	case f.Kind == wire.KindPart:
		return s.handlePart(f)
	case f.Kind == wire.KindHello:
		return s.handleHello(f.Body)
	case f.Kind == wire.KindPong:
		s.offerNewCalls() // this side may have drained then: see Drains
	}
	var after callbacks
	s.mu.Lock()
	err := s.handleControlLocked(f, &after)
	if err == nil {
		err = s.checkOwedLocked()
	}
	s.mu.Unlock()
	after.run()
	return err
}

// checkOpened returns an error if id is the id of a call that this side has never opened. The
// session checks this before it decodes a frame, because decoding can cost this side more than the
// frame costs the peer.
func (s *Session) checkOpened(id uint64) error {
	if !s.isOwn(id) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.lookupLocked(id)
	return err
}

// lookupLocked returns the stream with the given id, or nil if the call has ended. An id that was
// never opened is an error.
func (s *Session) lookupLocked(id uint64) (*stream, error) {
	if st := s.streams[id]; st != nil {
		st.heard = s.silent.reads
		return st, nil
	}
	last := s.last
	if s.isOwn(id) {
		last = s.lastOwn
	}
	if id > last {
		return nil, wire.ProtocolError("the peer speaks of call %d, which was not opened", id)
	}
	return nil, nil
}

// isOwn reports whether id belongs to the calls that this side opens: odd for clients,
// even for servers.
func (s *Session) isOwn(id uint64) bool { return s.opts.Client == (id%2 == 1) }

// handleStream handles a STREAM frame, together with the PARTs of its block. It keeps no reference to
// f.Body.
func (s *Session) handleStream(f wire.Frame) error {
	var before []byte // of the block
	if s.reading.parts.b != nil {
		parts := s.reading.parts.finish(len(f.Body))
		defer parts.Free()
		before = parts.B
	}
	fromCaller := !s.isOwn(f.Stream)
	rc, err := s.reading.dec.Stream(f, before, fromCaller)
	if err != nil {
		if fromCaller {
			// Count the call as seen: otherwise the DRAIN before BYE would tell the caller to
			// retry it, and it would end the next connection, too.
			s.mu.Lock()
			s.last = max(s.last, f.Stream)
			s.mu.Unlock()
		}
		return err
	}
	cost := len(rc.Data)
	if rc.Begins {
		cost += wire.MessageCost
	}
	var after callbacks
	s.mu.Lock()
	st, opened, err := s.handleStepLocked(f.Stream, &rc, cost, &after)
	if err == nil {
		err = s.checkOwedLocked()
	}
	s.mu.Unlock()
	after.run()
	if opened {
		s.reading.newCalls = append(s.reading.newCalls, newCall{st, rc.Open})
	}
	return err
}

// A newCall is a call of the peer that was not offered to the acceptor yet.
//
// It is offered once all input that was read is handled, and before a PONG in that input. So a call that was opened and reset in one
// read reaches no handler: its caller spends a few bytes on it, but a handler takes a goroutine.
type newCall struct {
	st   *stream
	open *link.CallHeader
}

// offerNewCalls offers the new calls to the acceptor, except those that have ended.
func (s *Session) offerNewCalls() {
	for i, c := range s.reading.newCalls {
		s.reading.newCalls[i] = newCall{}
		s.mu.Lock()
		wanted := c.st.reason == nil
		if wanted {
			s.reading.accepting = c.st
			s.inline.allowed = s.inlineTimeLocked(c.st)
		}
		s.mu.Unlock()
		if wanted {
			s.offerToAcceptor(c.st, c.open)
		}
	}
	s.reading.newCalls = s.reading.newCalls[:0]
}

// errNoCalls is the error of calls to a side without an acceptor.
var errNoCalls error = link.Unprocessed{Err: errors.New("the other side takes no calls")}

// offerToAcceptor offers a call to the acceptor. If the acceptor refuses it, the peer gets a
// RESET. If the session ends in the meantime, terminate leaves this call to offerToAcceptor,
// because only HandleStream's result tells whether a handler sees it. offerToAcceptor then aborts
// the call without a RESET: BYE tells the peer.
func (s *Session) offerToAcceptor(st *stream, o *link.CallHeader) {
	err := errNoCalls
	if s.acceptor != nil {
		err = s.acceptor.HandleStream(st, o)
	}
	refused := err != nil
	var after callbacks
	s.mu.Lock()
	s.reading.accepting = nil
	if !refused {
		err = s.life.Reason()
	}
	if err != nil {
		st.abortLocked(err, refused, &after)
		s.flush(false)
	} else {
		s.mu.Unlock()
	}
	after.run()
	st.Free()
}

// handleStepLocked handles one step of a call. cost is the credit that the step's message takes.
// handleStepLocked returns the stream, and whether the step opened it.
func (s *Session) handleStepLocked(id uint64, rc *wire.Received, cost int, after *callbacks) (st *stream, opened bool, err error) {
	if cost > s.connIn {
		return nil, false, wire.ProtocolError("the peer sends more than it has credit for")
	}
	s.connIn -= cost
	s.taken += cost
	s.returnConnCreditLocked()
	if rc.Wrong != nil {
		return nil, false, s.rejectStepLocked(id, rc, after)
	}
	if rc.Open != nil {
		st, err = s.newPeerStreamLocked(id, rc)
		opened = st != nil
	} else {
		if st, err = s.lookupLocked(id); st != nil {
			s.answered, st.answered = true, true
		}
	}
	if st == nil || st.ended {
		if rc.Placed && err == nil {
			s.sendReturnLocked(rc.Place) // the message will not be received
		}
		return nil, false, err
	}
	if rc.Placed {
		cost += rc.Size // only the stream's credit: the message is in the peer's own memory
	}
	return st, opened, st.deliverLocked(rc, cost, after)
}

// rejectStepLocked resets a call whose frame has invalid contents. The connection stays open.
func (s *Session) rejectStepLocked(id uint64, rc *wire.Received, after *callbacks) error {
	if rc.Placed {
		s.sendReturnLocked(rc.Place)
	}
	reason := encoded.Because{Text: rc.Wrong.Error(), Kind: link.ErrBroken}
	if rc.Open == nil {
		st, err := s.lookupLocked(id)
		if st != nil {
			st.abortLocked(reason, true, after)
		}
		return err
	}
	if id <= s.last {
		return wire.ProtocolError("the peer opens call %d after %d", id, s.last)
	}
	s.last = id
	if s.life.Drain() != lifecycle.Refusing {
		code, text := encoded.ResetOf(reason)
		s.writing.control = wire.AppendReset(s.writing.control, id, code, text)
	}
	return nil
}

// newPeerStreamLocked adds the stream of a call that the peer opens. It returns nil if the call is
// refused or ignored.
func (s *Session) newPeerStreamLocked(id uint64, rc *wire.Received) (*stream, error) {
	if id <= s.last {
		return nil, wire.ProtocolError("the peer opens call %d after %d", id, s.last)
	}
	s.last = id
	if s.life.Drain() == lifecycle.Refusing {
		return nil, nil // DRAIN was sent, which tells the peer that this call was not processed
	}
	if !s.opts.admits(s.calls) {
		s.writing.control = wire.AppendReset(s.writing.control, id, wire.ResetUnprocessed, fmt.Sprintf("no more than %d calls may be open at a time", s.calls))
		return nil, nil
	}
	if rc.Timeout > 0 {
		rc.Open.Deadline = time.Now().Add(rc.Timeout)
	}
	s.calls++
	st := streamPool.Get().(*stream)
	st.holders.Store(3) // the session, the acceptor and offerToAcceptor
	s.initStreamLocked(st, id, rc.Open.Encoding)
	s.streams[id] = st
	return st, nil
}

// blockTime bounds the time from the first PART of a block to the block's last frame.
// Until that frame the peer can send nothing else on the connection. Only this timeout
// frees an unfinished block.
const blockTime = 20 * time.Second

// parts collects a block that is longer than a frame. A connection has at most one such
// block at a time. Memory is allocated as the bytes arrive.
//
// Only the goroutine that reads the connection uses it. The timer runs independently
// and ends the session, even if the block is completed just after it fires.
type parts struct {
	of   uint64      // the stream of the block
	b    *buffer     // nil if no block has begun
	late *time.Timer // nil if b is nil
}

// handlePart handles a PART frame.
func (s *Session) handlePart(f wire.Frame) error {
	p := &s.reading.parts
	if p.b == nil {
		p.of, p.b = f.Stream, p.b.MakeRoom(len(f.Body))
		p.late = time.AfterFunc(blockTime, func() {
			s.fail(wire.ProtocolError("a block was not finished within %v", blockTime))
		})
	}
	if len(p.b.B)+len(f.Body) > s.opts.Config.MaxHeader {
		return wire.ProtocolError("a block is larger than the %d bytes that were said to be taken", s.opts.Config.MaxHeader)
	}
	p.b = p.b.MakeRoom(len(f.Body))
	p.b.B = append(p.b.B, f.Body...)
	return nil
}

// finish returns the block's parts, with room for its last n bytes. The caller frees the buffer.
func (p *parts) finish(n int) *buffer {
	b := p.b.MakeRoom(n)
	p.late.Stop()
	*p = parts{}
	return b
}
