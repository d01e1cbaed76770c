package quic

import (
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// Keepalive.
//
// quic-go keeps a connection alive, but does not always notice that the peer has ended. Its PINGs
// are so small that a restarted server sends no stateless reset for them: a reset must be smaller
// than the packet that it answers. And if the peer falls silent, quic-go's idle timeout does not
// count from the last packet that arrived. It counts from the first packet that this side sends
// after that. So a session checks now and then whether packets have arrived. If none have, a side
// that keeps the connection alive sends a larger packet.

// liveness checks whether the peer still sends packets. Guarded by the session's mu.
type liveness struct {
	probe time.Duration // how long the peer may be silent before this side sends a packet; 0 for no packets
	limit time.Duration // how long the peer may be silent before it counts as lost

	timer    *time.Timer
	next     time.Duration // the duration that the timer was set to
	received uint64        // packets that have arrived
	silent   time.Duration // a lower bound of the time without packets
	probed   time.Duration // the value of silent when a packet was sent; 0 if none was
}

// every returns the time between two checks. The field silent lags behind the true time by less
// than that.
func (w *liveness) every() time.Duration {
	if w.probe > 0 {
		return w.probe / 4
	}
	return w.limit / 12
}

// look ends a session whose peer is lost. Because the process may have been suspended, look counts
// only the time to which the timer was set.
func (s *session) look() {
	s.mu.Lock()
	if s.life.Reason() != nil {
		s.mu.Unlock()
		return
	}
	w := &s.liveness
	every, n := w.every(), s.conn.ConnectionStats().PacketsReceived
	left := w.limit - every
	switch {
	case n != w.received:
		w.received, w.silent, w.probed = n, 0, 0
	default:
		w.silent += w.next
		if w.probe > 0 && w.probed == 0 && w.silent >= w.probe-every {
			w.probed = w.silent
			s.sayLocked(probe)
		}
	}
	if w.probed > 0 {
		left = w.probed + w.limit - w.probe
	}
	if left -= w.silent; left <= 0 {
		s.mu.Unlock()
		reason := fmt.Errorf("connection lost: the peer has sent nothing for %v", w.limit)
		s.end(fmt.Errorf("%s: %w", s.name, reason), false)
		s.closeConn(wire.ByeClosed, reason.Error())
		return
	}
	w.next = min(every, left)
	w.timer.Reset(w.next)
	s.mu.Unlock()
}

// probe is a frame that means nothing. Its packet is larger than quic-go's stateless resets, which
// have 42 bytes.
var probe = append([]byte{42, 0, 0x40, 0}, make([]byte, 40)...)

// startLiveness starts the checks.
func (s *session) startLiveness() {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.liveness
	w.next = w.every()
	w.timer = time.AfterFunc(w.next, s.look)
}

// stopTimers stops all timers of a session that has ended.
func (s *session) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.Closes())
	for _, t := range []*time.Timer{s.stall.timer, s.release, s.liveness.timer} {
		if t != nil {
			t.Stop()
		}
	}
}
