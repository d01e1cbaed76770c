package mux

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// Drains.
//
// A drain has two steps, so that it loses no call that is on its way. First the side that drains
// announces it: it sends DRAIN without a last call, then PING, and goes on accepting calls. The
// peer makes no more calls once it has read this DRAIN. It answers the PING after the heads of
// the calls that it has made. The answer tells the side that drains that no more calls will come.
// Only then does it refuse calls, and its second DRAIN names the last call that it has seen.
//
// Invariants:
//
//   - The side that drains accepts each call whose HEAD it reads before the answer to its
//     PING, unless the peer does not answer in time, or the session ends.
//   - The peer writes no HEAD after this answer. No call that it had opened before it read
//     the announcement is ended by the drain, even if nothing of it was written yet.
//   - A call that is refused all the same has a number above the last call of the second DRAIN,
//     so its caller knows that no handler has seen it.
//   - A session that leaves drains before it ends: when its last call ends, another call of the
//     peer may be on its way.

// A drain is the state of a session's drains in both directions. Guarded by mu.
type drain struct {
	announced time.Time   // when the first DRAIN was sent; zero if it was not
	ping      uint64      // the number of the PING that followed it
	timer     *time.Timer // refuses calls if the peer does not answer; nil if none was announced

	got        int    // how many DRAINs have arrived
	takes      uint64 // the last of our calls that the peer accepts
	unnumbered int    // our calls without a number when the peer announced its drain
	pongs      []byte // PONGs that follow the heads of these calls
}

// maxDraining is how long a side that drains accepts calls of a peer that does not answer and
// still has calls open. It is grpc-go's value. If the peer has no calls open, it is
// Options.Farewell.
const maxDraining = time.Minute

// Drain implements [link.Session]. The side that accepted the connection leaves: its
// handlers may make calls until they have returned, and then the session ends.
func (s *Session) Drain() <-chan struct{} {
	s.mu.Lock()
	s.announce()
	if !s.opts.Client {
		s.leave(errors.New("the server is going away"))
	}
	s.flush(false)
	return s.drained
}

// announce announces that no more calls will be accepted. A session without an acceptor
// accepts none at any time. mu is held.
func (s *Session) announce() {
	d := &s.drain
	switch {
	case !d.announced.IsZero() || link.IsClosed(s.drained):
	case s.started && s.acceptor == nil:
		s.refuseCalls()
	default:
		d.announced = time.Now()
		d.timer = time.AfterFunc(s.opts.Farewell, s.onDrainTimer)
		s.writing.control = wire.AppendDrain(s.writing.control, wire.NoLast)
		d.ping = s.appendPing()
	}
}

// isDraining reports whether a drain was announced and calls are still accepted. mu is
// held.
func (s *Session) isDraining() bool {
	return !s.drain.announced.IsZero() && !link.IsClosed(s.drained)
}

// refuseCalls makes the session accept no more calls, and tells the peer which call was the last.
// mu is held.
func (s *Session) refuseCalls() {
	if link.IsClosed(s.drained) {
		return
	}
	close(s.drained)
	if s.drain.timer != nil {
		s.drain.timer.Stop()
	}
	s.writing.control = wire.AppendDrain(s.writing.control, s.last)
	s.closeIfDrained()
}

// onDrainTimer refuses the calls of a peer that has not answered in time.
func (s *Session) onDrainTimer() {
	s.mu.Lock()
	switch {
	case !s.isDraining():
	case s.calls == 0 || time.Since(s.drain.announced) >= maxDraining:
		s.refuseCalls()
	default:
		s.drain.timer.Reset(s.opts.Farewell)
	}
	s.flush(false)
}

// handlePong handles the answer to a PING. mu is held.
func (s *Session) handlePong(data [8]byte) {
	if s.isDraining() && binary.LittleEndian.Uint64(data[:]) == s.drain.ping {
		s.refuseCalls()
	}
}

// handleDrain handles the peer's DRAIN: we make no more calls, and the peer takes none above
// last. Each DRAIN makes this side walk all live streams, so a third DRAIN is an error, and so is
// one that says nothing new. mu is held.
func (s *Session) handleDrain(last uint64, after *callbacks) error {
	d := &s.drain
	if d.got++; d.got > 2 || last >= d.takes {
		return protocolError("the peer drains twice")
	}
	first := d.got == 1
	d.takes = last
	s.keepalive.spoke = true // the PING that follows is none too many
	reason := errors.New("the peer is going away")
	if !s.opts.Client {
		reason = errors.New("the client takes no more calls")
	}
	s.refuse(reason)
	for st := s.live.first; st != nil; {
		next := st.nextLive
		switch {
		case !st.caller:
		case st.id > last || st.id == 0 && last < wire.NoLast:
			st.abort(encoded.Unprocessed(reason, st.answered), false, after)
		case st.id == 0 && first:
			d.unnumbered++
		}
		st = next
	}
	if s.opts.Client {
		s.leave(reason) // a server leaves; a client that takes no more calls stays
	}
	return nil
}

// numbered records that a call of this side has got its number and that its head is about to be
// written, or that the call has ended without a number. mu is held.
func (s *Session) numbered() {
	d := &s.drain
	if d.unnumbered == 0 {
		return
	}
	if d.unnumbered--; d.unnumbered == 0 {
		s.writing.control = append(s.writing.control, d.pongs...)
		d.pongs = nil
	}
}

// answerPing sends a PONG, after the heads of the calls that were open when the peer
// announced a drain. mu is held.
func (s *Session) answerPing(data [8]byte) {
	to := &s.writing.control
	if s.drain.unnumbered > 0 {
		to = &s.drain.pongs
	}
	*to = wire.AppendPing(*to, wire.KindPong, data)
}
