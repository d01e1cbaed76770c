package quic

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

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

	got   int    // how many DRAINs have arrived
	takes uint64 // the number of the last of our calls that the peer accepts
}

func (s *session) Drain() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perform(s.life.StopAccepting(errors.New("the server is going away")))
	return s.drained
}

var announcement = wire.AppendDrain(nil, wire.NoLast)

// serves reports whether a call of the peer is open. mu is held.
func (s *session) serves() bool {
	for st := range s.live {
		if !st.caller {
			return true
		}
	}
	return false
}

// checkAnswered ends the drain once the peer's last call has arrived. mu is held.
func (s *session) checkAnswered() {
	if s.drain.answered && s.seen >= s.drain.awaited {
		s.perform(s.life.PeerAnswers())
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
	s.checkAnswered()
	return nil
}

// handleDrain handles the peer's DRAIN. From now on this side makes no calls, and the peer accepts
// none of its calls with a number above last. Each DRAIN makes this side walk all calls, so a
// third DRAIN, or a DRAIN with nothing new, is an error.
func (s *session) handleDrain(last uint64) error {
	reason := s.noMoreCalls()
	var callers, lost []*stream
	s.mu.Lock()
	d := &s.drain
	if d.got++; d.got > 2 || last >= d.takes {
		s.mu.Unlock()
		return wire.ProtocolError("the peer drains twice")
	}
	d.takes = last
	s.perform(s.life.PeerDrains(reason))
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
		s.say(wire.AppendPing(nil, wire.KindPong, data))
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
