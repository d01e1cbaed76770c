package quic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
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
	taken   int64       // see session.taken
	takenAt time.Time   // when taken last changed
	packets uint64      // how many packets have arrived
}

// performLocked does what life says.
func (s *session) performLocked(do lifecycle.Task) {
	if do&lifecycle.RefuseOwn != 0 {
		s.stopCalls()
	}
	if do&lifecycle.Announce != 0 {
		s.drain.asked = true
		s.sayLocked(announcement)
	}
	if do&lifecycle.RefusePeer != 0 {
		close(s.drained)
		s.sayLocked(wire.AppendDrain(nil, s.seen))
	}
	if do&lifecycle.Finish != 0 && s.control != nil {
		_ = s.control.Close()
	}
	if do&(lifecycle.Finish|lifecycle.EndCalls) != 0 {
		s.watchPeerLocked()
	}
	if do&lifecycle.Expire != 0 {
		go func() { _ = s.Close(fmt.Errorf("%s: %w", s.name, lifecycle.ErrOld)) }()
	}
	if do&lifecycle.Close != 0 {
		go s.closeConn(wire.ByeDone, "") // both sides are finished
	}
	if do&lifecycle.SetTimer != 0 {
		s.timer.Set(s.life.Next(), s.onTimer)
	}
}

// onTimer does what is due in the session's life.
func (s *session) onTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Fired()
	do := s.life.Fire(s.servesLocked())
	if do&lifecycle.Close != 0 { // the peer has taken nothing
		text := "the peer does not leave"
		if reason := s.life.Reason(); reason != nil {
			text = reason.Error()
		}
		go s.closeConn(wire.ByeClosed, text)
	}
	s.performLocked(do &^ lifecycle.Close)
}

func (s *session) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.Retire())
}

// closeConn closes the connection at once.
func (s *session) closeConn(code wire.ByeCode, text string) {
	_ = s.conn.CloseWithError(q.ApplicationErrorCode(code), text)
}

func (s *session) Close(reason error) error {
	s.mu.Lock()
	calls, waited := len(s.live), !s.client || s.served
	s.mu.Unlock()
	s.end(reason, true)
	if !waited { // the peer waits for nothing from this side
		code := wire.ByeDone
		if calls > 0 {
			code = wire.ByeClosed
		}
		s.closeConn(code, reason.Error())
	}
	return nil
}

// watchPeerLocked starts to check whether the peer takes anything.
func (s *session) watchPeerLocked() {
	if s.stall.timer != nil || s.conn.Context().Err() != nil {
		return
	}
	s.stall = stallCheck{
		taken: s.taken.Load(), takenAt: time.Now(), packets: s.conn.ConnectionStats().PacketsReceived,
		timer: time.AfterFunc(stallCheckTime, s.checkStall),
	}
}

// checkStall prolongs the wait for a peer that takes something.
func (s *session) checkStall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.State() == lifecycle.Closed {
		return
	}
	b, now, takes := &s.stall, time.Now(), false
	if n := s.conn.ConnectionStats().PacketsReceived; n != b.packets {
		b.packets, takes = n, now.Sub(b.takenAt) < maxCloseTimeout-closeTimeout
	}
	if taken := s.taken.Load(); taken != b.taken {
		b.taken, b.takenAt, takes = taken, now, true
	}
	if takes {
		s.performLocked(s.life.Takes())
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
	do := s.life.End(reason, false)
	s.performLocked(do &^ lifecycle.Close)
	if do&lifecycle.EndCalls == 0 {
		s.mu.Unlock()
		return
	}
	all := make([]*stream, 0, len(s.live))
	for st := range s.live {
		all = append(all, st)
	}
	s.mu.Unlock()
	if do&lifecycle.Close != 0 {
		s.closeConn(wire.ByeClosed, reason.Error()) // the session has not started
	}
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

// Drains.
//
// As over other connections, a drain has two steps, and calls that are on their way are accepted:
// see internal/mux. But each call has its own stream, and the answer to the announcement can
// arrive before calls, for instance if a packet was lost. So the answer names the last call that
// the peer has made, and calls are refused only after that call has arrived. quic-go accepts the
// streams of a peer in their order.
//
// Invariants:
//
//   - The side that drains accepts the calls that the peer had made when it read the announcement.
//     It stops earlier if the peer does not answer in time or the session ends.
//   - If a side leaves, it first drains, and then ends its control stream.

// A drain is what a session knows of drains in both directions besides its life. Guarded by mu.
type drain struct {
	asked    bool   // this side has announced its drain
	answered bool   // the peer has named its last call
	awaited  uint64 // the number of that call

	limit lifecycle.DrainLimit
}

func (s *session) Drain() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.StopAccepting())
	return s.drained
}

var announcement = wire.AppendDrain(nil, wire.NoLast)

// servesLocked reports whether a call of the peer is open.
func (s *session) servesLocked() bool {
	for st := range s.live {
		if !st.caller {
			return true
		}
	}
	return false
}

// checkAnsweredLocked ends the drain once the peer's last call has arrived.
func (s *session) checkAnsweredLocked() {
	if s.drain.answered && s.seen >= s.drain.awaited {
		s.performLocked(s.life.PeerAnswers())
	}
}

// handlePong handles the peer's answer to the announcement.
func (s *session) handlePong(data [8]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.drain
	if !d.asked || d.answered {
		return wire.ProtocolError("the peer answers what was not asked")
	}
	d.answered, d.awaited = true, binary.LittleEndian.Uint64(data[:])
	s.checkAnsweredLocked()
	return nil
}

// handleDrain handles the peer's DRAIN. From now on this side makes no calls, and the peer accepts
// none of its calls with a number above last.
func (s *session) handleDrain(last uint64) error {
	reason := s.noMoreCalls()
	var callers, lost []*stream
	s.mu.Lock()
	if s.drain.limit.Exceeded(last) {
		s.mu.Unlock()
		return wire.ProtocolError("the peer drains twice")
	}
	s.performLocked(s.life.PeerDrains(reason))
	s.peerDrains.Store(true)
	for st := range s.live {
		switch {
		case !st.caller:
		case numberOf(st.qs.StreamID()) > last:
			lost = append(lost, st)
		default:
			callers = append(callers, st)
		}
	}
	if last >= wire.NoLast {
		var data [8]byte
		binary.LittleEndian.PutUint64(data[:], s.opened)
		s.sayLocked(wire.AppendPing(nil, wire.KindPong, data))
	}
	s.mu.Unlock()
	for _, st := range lost {
		st.abort(link.Unprocessed{Err: reason}, false)
	}
	for _, st := range callers {
		st.mu.Lock()
		wait.Unpark(st.in.pump.Wake()) // it may read up to maxUnread now
		st.mu.Unlock()
	}
	return nil
}

func (s *session) noMoreCalls() error { return fmt.Errorf("%s: the peer takes no more calls", s.name) }
