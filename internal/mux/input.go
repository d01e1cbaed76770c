package mux

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

const (
	readBuffer = 16 << 10  // usual size of the read buffer, in bytes
	maxRead    = 256 << 10 // its largest size, reached if reads keep filling it
)

// readSpace returns the free part of the read buffer.
func (s *Session) readSpace() []byte {
	if s.reading.in == nil {
		s.reading.in = newBuffer(max(s.reading.room, readBuffer))
	}
	return s.reading.in.B[len(s.reading.in.B):cap(s.reading.in.B)]
}

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

// Plain messages are small messages of streams, in frames that hold nothing else. Streams send
// mostly these, so both sides handle many of them at once.

// maxAtOnce is how many bytes of plain frames are handled under one lock.
const maxAtOnce = 32 << 10

// handlePlain handles the plain frames at the beginning of input and returns their length. It
// stops at a frame that breaks a rule or has no open call, and leaves it to handleFrame. An
// error ends the session.
func (s *Session) handlePlain(input []byte) (done int, err error) {
	id, message, n := wire.Plain(input)
	if n == 0 || !s.reading.isMet || s.reading.parts.b != nil {
		return 0, nil
	}
	var after callbacks
	var st *stream
	s.mu.Lock()
	for ; n > 0 && done < maxAtOnce; id, message, n = wire.Plain(input[done:]) {
		if st == nil || st.id != id {
			if st != nil {
				after.unpark(s.wakeLocked(&st.in.receiver))
			}
			if st, _ = s.lookupLocked(id); st == nil {
				break
			}
		}
		if !st.deliverPlainLocked(message) {
			break
		}
		done += n
	}
	if st != nil && done > 0 {
		after.unpark(s.wakeLocked(&st.in.receiver))
	}
	err = s.checkOwedLocked()
	s.mu.Unlock()
	after.run()
	return done, err
}

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
	if most := s.reading.dec.Block; len(p.b.B)+len(f.Body) > most {
		return wire.ProtocolError("a block is larger than the %d bytes that were said to be taken", most)
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

func (s *Session) handleHello(body []byte) error {
	h, err := wire.ParseHello(body)
	if err != nil {
		return err
	}
	if s.reading.isMet {
		return wire.ProtocolError("the peer says hello twice")
	}
	var after callbacks
	s.mu.Lock()
	if s.writing.broken == nil {
		_ = s.conn.SetReadDeadline(time.Time{})
	}
	for st := range s.live {
		st.flow.Credit += h.Stream - s.hello.Stream // cannot overflow: no CREDIT is accepted before HELLO
		after.unpark(s.wakeLocked(&st.sender))
		st.scheduleLocked()
	}
	err = addCredit(&s.writing.connOut, h.Connection-s.hello.Connection)
	s.hello, s.reading.isMet = h, true
	s.life.PeerAllows(fromMillis(h.Ping), fromMillis(h.IdlePing))
	s.mu.Unlock()
	after.run()
	s.counted.Begin(s.opts.Client, s.opts.Peer.Path)
	close(s.helloReceived)
	return err
}

// fromMillis returns a number of milliseconds that a peer has chosen as a duration.
func fromMillis(n uint64) time.Duration {
	return time.Duration(min(n, uint64(math.MaxInt64/2/time.Millisecond))) * time.Millisecond
}

// handleControlLocked handles the frames that carry no part of a call.
func (s *Session) handleControlLocked(f wire.Frame, after *callbacks) error {
	switch f.Kind {
	case wire.KindCredit:
		n, err := wire.ParseCredit(f.Body)
		if err != nil {
			return err
		}
		if f.Stream == 0 {
			return addCredit(&s.writing.connOut, n)
		}
		st, err := s.lookupLocked(f.Stream)
		if st != nil {
			if err := addCredit(&st.flow.Credit, n); err != nil {
				return err
			}
			st.scheduleLocked()
			if st.flow.TakesMore(s.writing.backlog) { // otherwise its sender would wake in vain for each byte of credit
				after.unpark(s.wakeLocked(&st.sender))
			}
		}
		return err
	case wire.KindReset:
		code, text, err := wire.ParseReset(f.Body)
		if err != nil {
			return err
		}
		st, err := s.lookupLocked(f.Stream)
		if st != nil {
			st.abortUnreadLocked(encoded.ReasonOf(code, text, st.answered), after)
		}
		return err
	case wire.KindPing:
		data, err := wire.ParsePing(f.Body)
		if err != nil {
			return err
		}
		return s.handlePingLocked(data)
	case wire.KindReturn:
		at, err := wire.ParseReturn(f.Body)
		if err == nil && s.placer == nil {
			err = wire.ProtocolError("a place is returned where there are none")
		}
		if err == nil {
			if wrong := s.placer.Returned(at); wrong != nil {
				err = fmt.Errorf("%w: %w", wire.ErrProtocol, wrong)
			}
		}
		return err
	case wire.KindPong:
		data, err := wire.ParsePing(f.Body)
		if err == nil && s.life.Drain() == lifecycle.Announced && binary.LittleEndian.Uint64(data[:]) == s.drain.ping {
			s.performLocked(s.life.PeerAnswers())
		}
		return err
	case wire.KindDrain:
		last, err := wire.ParseDrain(f.Body)
		if err != nil {
			return err
		}
		return s.handleDrainLocked(last, after)
	case wire.KindBye:
		_, text, err := wire.ParseBye(f.Body)
		if err != nil {
			return err
		}
		return byeError(text)
	}
	return nil // other kinds are extensions, which are ignored
}

// A byeError is the peer's BYE, as an error.
type byeError string

func (text byeError) Error() string { return cmp.Or(string(text), "the peer ended the connection") }

// addCredit adds n to *to, which may be negative after a placed message that was larger
// than the credit.
func addCredit(to *int64, n int64) error {
	if *to > wire.MaxCredit-n {
		return wire.ProtocolError("more credit than %d", wire.MaxCredit)
	}
	*to += n
	return nil
}

// maxOwed bounds the control frames that wait for a peer that does not read, in
// bytes: PONG, RESET, CREDIT and others.
const maxOwed = 4 << 20

// checkOwedLocked fails if the peer keeps sending frames that need an answer but does not read the
// answers.
func (s *Session) checkOwedLocked() error {
	if n := len(s.writing.control) + len(s.drain.pongs); n > maxOwed {
		return fmt.Errorf("the peer does not read the %d bytes that it is owed", n)
	}
	return nil
}
