package quic

import (
	"context"
	"errors"
	"fmt"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// How a session ends.
//
// Closing a QUIC connection discards bytes that the peer has not acknowledged, such as the last
// replies, or not read from its streams. So when a side leaves and has no call left, it
// first ends its control stream. By then all replies to its calls have arrived, and it has sent
// all replies to the peer's calls. The peer reads the end of that control stream. Once it has no
// call left either, it has all replies as well, and closes the connection.
//
// Invariants:
//
//   - A side that leaves waits while its peer takes bytes. It closes the connection when the peer
//     has taken nothing for the duration closeTimeout.
//   - Bytes count as taken when quic-go first puts them into packets, because the peer's credit
//     and its acknowledgements must allow that. quic-go does not tell what the peer's packets
//     acknowledge. So the peer's packets count as well, but packets alone only for
//     maxCloseTimeout: a peer can send packets and take nothing.
//   - A caller whose peer drains reads replies from their streams before anybody receives them, up
//     to maxUnread. So a slow receiver does not look to the peer as if it took nothing.

const (
	closeTimeout    = 5 * time.Second   // how long a side that leaves waits for a peer that takes nothing
	maxCloseTimeout = time.Minute       // how long the peer's packets alone prolong this wait
	stallCheckTime  = closeTimeout / 10 // how often a side that leaves checks whether its peer takes anything
)

// stallCheck tracks what the peer has taken since this side began to wait for the peer. Guarded by
// the session's mu.
type stallCheck struct {
	timer   *time.Timer // nil until the side waits for its peer
	text    string      // why the connection is closed if the peer takes nothing
	taken   int64       // see session.taken
	takenAt time.Time   // when taken last changed
	packets uint64      // how many packets have arrived
	heardAt time.Time   // when packets last changed
}

func (s *session) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(errors.New("the connection is retired"))
}

// retire stops this side from making more calls, announces a drain, and lets the session end when
// no call is left. mu is held.
func (s *session) retire(reason error) {
	s.refuse(reason)
	s.announce()
	s.leaving = true
	s.leaveIfIdle()
}

// refuse stops this side from making more calls. New calls fail with reason. mu is held.
func (s *session) refuse(reason error) {
	if s.refusal != nil {
		return
	}
	s.refusal = reason
	close(s.done)
	if !link.IsClosed(s.metOrDone) {
		close(s.metOrDone)
	}
	for o := range s.opening {
		o.cancel()
	}
}

// leaveIfIdle ends the control stream, and then the connection, if this side leaves, no call is
// left and no call of the peer can be on its way. mu is held.
func (s *session) leaveIfIdle() {
	if !s.leaving || len(s.live) > 0 || s.control == nil {
		return
	}
	if !link.IsClosed(s.drained) {
		s.announce() // refuseCalls calls leaveIfIdle again
		return
	}
	if !s.finished {
		s.finished = true
		s.refuse(fmt.Errorf("%s: the connection is about to end", s.name))
		_ = s.control.Close()
		s.closeLater("the peer does not leave")
	}
	if s.peerDone && !s.closing {
		s.closing = true
		go s.closeConn(wire.ByeDone, "")
	}
}

// closeConn closes the connection at once.
func (s *session) closeConn(code wire.ByeCode, text string) {
	_ = s.conn.CloseWithError(q.ApplicationErrorCode(code), text)
}

func (s *session) Close(reason error) error {
	s.mu.Lock()
	s.refuse(reason)
	s.leaving = true
	s.refuseCalls()
	s.leaveIfIdle()
	calls, served := len(s.live), s.served
	s.mu.Unlock()
	s.end(reason, true)
	if s.client && !served { // the peer waits for nothing from this side
		code := wire.ByeDone
		if calls > 0 {
			code = wire.ByeClosed
		}
		s.closeConn(code, reason.Error())
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLater(reason.Error()) // the peer might not read the remaining replies
	return nil
}

// closeLater closes the connection if the peer takes nothing and does not close it. mu is held.
func (s *session) closeLater(text string) {
	if s.stall.timer != nil || s.conn.Context().Err() != nil {
		return
	}
	now := time.Now()
	s.stall = stallCheck{
		text: text, taken: s.taken.Load(), takenAt: now, packets: s.conn.ConnectionStats().PacketsReceived, heardAt: now,
		timer: time.AfterFunc(stallCheckTime, s.checkStall),
	}
}

// checkStall closes the connection if the peer has taken nothing for too long.
func (s *session) checkStall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn.Context().Err() != nil {
		return
	}
	b, now := &s.stall, time.Now()
	if taken := s.taken.Load(); taken != b.taken {
		b.taken, b.takenAt = taken, now
	}
	if n := s.conn.ConnectionStats().PacketsReceived; n != b.packets {
		b.packets, b.heardAt = n, now
	}
	sinceTaken := now.Sub(b.takenAt)
	if sinceTaken >= maxCloseTimeout || sinceTaken >= closeTimeout && now.Sub(b.heardAt) >= closeTimeout {
		go s.closeConn(wire.ByeClosed, b.text)
		return
	}
	b.timer.Reset(stallCheckTime)
}

// fail ends a session whose peer has broken the protocol.
func (s *session) fail(code wire.ByeCode, reason error) {
	s.closeConn(code, reason.Error())
	s.end(fmt.Errorf("%s: %w", s.name, reason), false)
}

// connClosed ends the session when the connection is closed.
func (s *session) connClosed() {
	s.end(s.reasonOf(context.Cause(s.conn.Context())), false)
	if s.gone != nil {
		s.gone()
	}
	s.stopTimers()
	if s.acceptor != nil {
		s.acceptor.Gone()
	}
	close(s.closed)
}

// reasonOf returns the reason for ending calls after the connection has ended with cause.
func (s *session) reasonOf(cause error) error {
	if app, ok := errors.AsType[*q.ApplicationError](cause); ok {
		if app.ErrorMessage == "" {
			return fmt.Errorf("%s: the connection was closed", s.name)
		}
		return fmt.Errorf("%s: the connection was closed: %s", s.name, app.ErrorMessage)
	}
	if t, ok := errors.AsType[*q.TransportError](cause); ok && t.Remote && (t.ErrorCode.IsCryptoError() || t.ErrorCode == q.ConnectionRefused) {
		return link.Unprocessed{Err: fmt.Errorf("%s: the server refuses the connection: %w", s.name, cause), Unsent: true} // as if the dial had failed
	}
	if _, ok := errors.AsType[*q.StatelessResetError](cause); ok {
		return fmt.Errorf("%s: connection lost (the server has lost it, and may have been restarted): %w", s.name, cause)
	}
	return fmt.Errorf("%s: connection lost: %w", s.name, cause)
}

// end ends all calls for reason. tell says that this side can still send the peer the reason.
func (s *session) end(reason error, tell bool) {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	s.ended = reason
	s.refuse(reason)
	s.refuseCalls()
	all := make([]*stream, 0, len(s.live))
	for st := range s.live {
		all = append(all, st)
	}
	s.mu.Unlock()
	for _, st := range all {
		st.abort(reason, tell)
	}
	s.counted.End()
	close(s.over)
	if s.acceptor != nil {
		s.acceptor.Closed(reason)
	}
}

// Written implements [link.Session]. Here the peer's packets do not count, because they may belong
// to this side's calls.
func (s *session) Written() <-chan struct{} {
	written := make(chan struct{})
	go func() {
		defer close(written)
		taken, end := s.taken.Load(), time.Now().Add(closeTimeout)
		for time.Now().Before(end) {
			select {
			case <-s.closed:
				return
			case <-time.After(stallCheckTime):
			}
			if n := s.taken.Load(); n != taken {
				taken, end = n, time.Now().Add(closeTimeout)
			}
		}
	}()
	return written
}
