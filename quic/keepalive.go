package quic

import (
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/wire"
)

// Keepalive.
//
// quic-go keeps a connection alive, but is not enough to notice that the peer is gone. Its PINGs
// are so small that a server which was started again answers them with no stateless reset: a
// reset must be smaller than what draws it. And its idle timeout begins again with the first
// packet that this side sends into the silence. So a session looks now and then whether packets
// have arrived. A side that keeps the connection alive sends a larger packet when none have.

// A watch looks whether the peer still sends packets. Guarded by the session's mu.
type watch struct {
	probe time.Duration // how long it may be quiet before a packet is sent; 0 for no packets
	limit time.Duration // how long it may be quiet before the peer counts as lost

	timer    *time.Timer
	next     time.Duration // what the timer was set to
	received uint64        // packets that have arrived
	quiet    time.Duration // how long none has arrived, at least
	probed   time.Duration // the value of quiet when a packet was sent; 0 if none was
}

// every is the time between two looks. quiet is short of the truth by less than this.
func (w *watch) every() time.Duration {
	if w.probe > 0 {
		return w.probe / 4
	}
	return w.limit / 12
}

// startWatch starts the looks. mu is held.
func (s *session) startWatch() {
	w := &s.watch
	w.next = w.every()
	w.timer = time.AfterFunc(w.next, s.look)
}

// look ends a session whose peer is lost. The process may have slept before it, so that only the
// time that a timer was set to counts.
func (s *session) look() {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	w := &s.watch
	every, n := w.every(), s.conn.ConnectionStats().PacketsReceived
	left := w.limit - every
	switch {
	case n != w.received:
		w.received, w.quiet, w.probed = n, 0, 0
	default:
		w.quiet += w.next
		if w.probe > 0 && w.probed == 0 && w.quiet >= w.probe-every {
			w.probed = w.quiet
			s.say(probe)
		}
	}
	if w.probed > 0 {
		left = w.probed + w.limit - w.probe
	}
	if left -= w.quiet; left <= 0 {
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
