package quic

import (
	"encoding/binary"
	"fmt"
	"time"

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

// A drain is the state of a session's drains in both directions. Guarded by mu.
type drain struct {
	announced time.Time   // when the first DRAIN was sent; zero if it was not
	answered  bool        // the peer has named its last call
	awaited   uint64      // the number of that call
	timer     *time.Timer // refuses calls if the peer does not answer; nil if no drain was announced

	got   int    // how many DRAINs have arrived
	takes uint64 // the number of the last of our calls that the peer accepts
}

// maxDraining is how long a side that drains accepts calls of a peer that does not answer and
// still has calls open. It is grpc-go's value. If the peer has no calls open, the limit is the
// constant closeTimeout.
const maxDraining = time.Minute

func (s *session) Drain() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announce()
	if !s.client {
		s.leaving = true
		s.leaveIfIdle()
	}
	return s.drained
}

// announce announces that no more calls will be accepted. A session without an acceptor never
// accepts calls, so it skips the announcement and refuses them at once. mu is held.
func (s *session) announce() {
	d := &s.drain
	switch {
	case !d.announced.IsZero() || link.IsClosed(s.drained):
	case s.control != nil && s.acceptor == nil:
		s.refuseCalls()
	default:
		d.announced = time.Now()
		d.timer = time.AfterFunc(closeTimeout, s.onDrainTimer)
		s.say(announcement)
	}
}

var announcement = wire.AppendDrain(nil, wire.NoLast)

// sayDrain writes the frames of a drain that began before the control stream was open. mu is held.
func (s *session) sayDrain() {
	if !s.drain.announced.IsZero() {
		s.say(announcement)
	}
	if link.IsClosed(s.drained) {
		s.say(wire.AppendDrain(nil, s.seen))
	}
}

// isDraining reports whether a drain was announced and calls are still accepted. mu is held.
func (s *session) isDraining() bool { return !s.drain.announced.IsZero() && !link.IsClosed(s.drained) }

// refuseCalls makes the session accept no more calls, and tells the peer which call was the last.
// mu is held.
func (s *session) refuseCalls() {
	if link.IsClosed(s.drained) {
		return
	}
	close(s.drained)
	if s.drain.timer != nil {
		s.drain.timer.Stop()
	}
	s.say(wire.AppendDrain(nil, s.seen))
	s.leaveIfIdle()
}

// onDrainTimer refuses the calls of a peer that is late to answer.
func (s *session) onDrainTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.isDraining():
	case !s.serves() || time.Since(s.drain.announced) >= maxDraining:
		s.refuseCalls()
	default:
		s.drain.timer.Reset(closeTimeout)
	}
}

// serves reports whether a call of the peer is open. mu is held.
func (s *session) serves() bool {
	for st := range s.live {
		if !st.caller {
			return true
		}
	}
	return false
}

// refuseAfterLast refuses calls once the peer's last call has arrived. mu is held.
func (s *session) refuseAfterLast() {
	if s.isDraining() && s.drain.answered && s.seen >= s.drain.awaited {
		s.refuseCalls()
	}
}

// handlePong handles the peer's answer to the announcement.
func (s *session) handlePong(data [8]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.drain
	if d.announced.IsZero() || d.answered {
		return wire.ProtocolError("the peer answers what was not asked")
	}
	d.answered, d.awaited = true, binary.LittleEndian.Uint64(data[:])
	s.refuseAfterLast()
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
	s.refuse(reason)
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
	if s.client {
		s.leaving = true
	}
	s.leaveIfIdle()
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
