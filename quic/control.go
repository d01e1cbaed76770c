package quic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/wire"
)

// The control stream of each side carries HELLO, and then the frames of drains and the probes of
// keepalive. A side ends it when it leaves and has no call left.

// sayLocked writes a frame to the control stream, if that is open. The few frames of a session fit
// any window that docs/protocol.md allows.
func (s *session) sayLocked(b []byte) {
	if s.control != nil {
		_ = s.control.TryWriteAll(b)
	}
}

// readControl reads the peer's control stream, and ends the session if the peer breaks a rule
// there or does not complete the handshake in time.
func (s *session) readControl() {
	err := s.handleControl()
	if err == nil || s.conn.Context().Err() != nil {
		return
	}
	s.fail(wire.ByeProtocol, err)
}

// handleControl handles the peer's control stream until its end.
func (s *session) handleControl() error {
	ctx, cancel := context.WithTimeout(s.conn.Context(), s.handshake)
	control, err := s.conn.AcceptUniStream(ctx)
	cancel()
	if err != nil {
		if closes(err) {
			return nil
		}
		return errors.New("the peer did not complete the handshake in time")
	}
	_ = control.SetReadDeadline(time.Now().Add(s.handshake))
	in := bufio.NewReaderSize(control, 1024) // has room for the longest frame that docs/protocol.md allows here
	for need, met := 1, false; ; {
		_, err := in.Peek(need)
		b, _ := in.Peek(in.Buffered())
		f, n, wrong := wire.Next(b)
		if wrong == nil && n > 0 {
			wrong = s.handleControlFrame(f, met)
		}
		switch {
		case wrong != nil:
			return wrong
		case n > 0:
			_, _ = in.Discard(n)
			need = 1
			if !met {
				met = true
				_ = control.SetReadDeadline(time.Time{})
			}
		case err == bufio.ErrBufferFull:
			return wire.ProtocolError("a frame of the control stream is larger than %d bytes", len(b))
		case err == io.EOF && len(b) == 0 && met:
			s.handleDone()
			return nil
		case err != nil && closes(err):
			return nil
		case err != nil && !met:
			return errors.New("the peer did not complete the handshake in time")
		case err != nil:
			return wire.ProtocolError("the control stream ended early: %v", err)
		default:
			need = len(b) + 1
		}
	}
}

// closes reports whether err, the error of a stream, says that the connection is being closed.
// quic-go may return such an error before it ends the connection's context.
func closes(err error) bool {
	if _, reset := errors.AsType[*q.StreamError](err); reset || err == io.EOF {
		return false
	}
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded)
}

// handleControlFrame handles a frame of the control stream. met says that HELLO has arrived.
func (s *session) handleControlFrame(f wire.Frame, met bool) error {
	switch {
	case f.Kind == wire.KindHello && !met:
		h, err := wire.ParseHello(f.Body)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.hello = h
		s.mu.Unlock()
		s.counted.Begin(s.client, counters.QUIC)
		close(s.met)
		return nil
	case !met:
		return wire.ProtocolError("the peer has not said hello")
	case f.Kind == wire.KindDrain:
		last, err := wire.ParseDrain(f.Body)
		if err != nil {
			return err
		}
		return s.handleDrain(last)
	case f.Kind == wire.KindPong:
		data, err := wire.ParsePing(f.Body)
		if err != nil {
			return err
		}
		return s.handlePong(data)
	case f.Kind.Ignorable():
		return nil
	}
	return wire.ProtocolError("a frame of kind %#x on the control stream", byte(f.Kind))
}

// handleDone handles the end of the peer's control stream: the peer leaves, and none of its
// calls is open or on its way.
func (s *session) handleDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.PeerFinishes(fmt.Errorf("%s: the peer has left", s.name)))
}

// numberOf returns the number of the call on a stream: 1 for the first call of its side, then 2.
func numberOf(id q.StreamID) uint64 { return uint64(id)/4 + 1 }
