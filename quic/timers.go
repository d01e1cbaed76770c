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

// look sends such a packet when it is time, and ends a session whose peer is lost.
func (s *session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Reason() != nil {
		return
	}
	next, probes := s.silence.Check(s.conn.ConnectionStats().PacketsReceived)
	if probes {
		s.sayLocked(probe)
	}
	if next > 0 {
		s.looks = time.AfterFunc(next, s.look)
		return
	}
	go func() {
		reason := fmt.Errorf("connection lost: the peer has sent nothing for %v", s.silence.Limit)
		s.end(fmt.Errorf("%s: %w", s.name, reason), false)
		s.closeConn(wire.ByeClosed, reason.Error())
	}()
}

// probe is a frame that means nothing. Its packet is larger than quic-go's stateless resets, which
// have 42 bytes.
var probe = append([]byte{42, 0, 0x40, 0}, make([]byte, 40)...)

// stopTimers stops all timers of a session that has ended.
func (s *session) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.performLocked(s.life.Closes())
	for _, t := range []*time.Timer{s.stall.timer, s.release, s.looks} {
		if t != nil {
			t.Stop()
		}
	}
}
