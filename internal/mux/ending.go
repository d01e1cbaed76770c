package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// How calls and a session end.

// endBothLocked ends sending at once. Receiving ends after everything that has arrived was
// received.
func (st *stream) endBothLocked(why error, after *callbacks) {
	if st.sendErr == nil {
		st.sendErr = why
	}
	st.in.Close(why)
	if len(st.out) == 0 {
		st.unregisterLocked()
	}
	after.unpark(st.session.wakeLocked(&st.sender))
	after.unpark(st.session.wakeLocked(&st.in.receiver))
}

// unregisterLocked removes the stream from the session, so that nothing more arrives for it.
func (st *stream) unregisterLocked() {
	s := st.session
	if st.id != 0 && s.streams[st.id] == st {
		delete(s.streams, st.id)
		if !st.caller {
			s.calls--
			s.checkWrittenLocked()
		}
	}
	if _, live := s.live[st]; !live {
		return
	}
	delete(s.live, st)
	st.removeUnreadLocked(st.in.unread)
	if st.caller {
		if st.id == 0 {
			s.numberedLocked()
		}
		if !st.held {
			s.releaseCallLocked()
		}
	}
	s.performLocked(s.life.CallEnds()) // after the last call the writer writes BYE, if it is due
}

// abortLocked ends the call for reason, if it has not ended. If tell is set, the peer gets a RESET.
func (st *stream) abortLocked(reason error, tell bool, after *callbacks) {
	if st.ended || st.reason != nil {
		return
	}
	st.reason = reason
	known := st.id != 0 && st.session.streams[st.id] == st
	st.dropQueuedLocked()
	if tell && known {
		code, text := encoded.ResetOf(reason)
		st.session.writing.control = wire.AppendReset(st.session.writing.control, st.id, code, text)
	}
	st.unregisterLocked()
	st.in.DropPartial()
	f := st.onAbort
	switch {
	case f == nil:
		st.endBothLocked(reason, after)
	case st.caller:
		st.endBothLocked(reason, after)
		after.last = append(after.last, func() { f(reason) })
	default:
		after.first = append(after.first, func() {
			f(reason)
			var after callbacks
			st.session.mu.Lock()
			st.endBothLocked(reason, &after)
			st.session.mu.Unlock()
			after.run()
		})
	}
}

// abortUnreadLocked ends a call that the peer no longer reads. Unlike abort it also drops an END
// that was not written yet.
func (st *stream) abortUnreadLocked(reason error, after *callbacks) {
	st.abortLocked(reason, false, after)
	if st.ended {
		st.dropQueuedLocked()
		st.unregisterLocked()
	}
}

// onTimer does what is due in the session's life.
func (s *Session) onTimer() {
	s.mu.Lock()
	s.timer.Fired()
	do := s.life.Fire(s.calls > 0)
	s.performLocked(do)
	s.flushLocked(false)
	s.mu.Unlock()
	s.closeIf(do)
}

// closeIf closes the connection if life has said so.
func (s *Session) closeIf(do lifecycle.Task) {
	if do&lifecycle.Close != 0 {
		_ = s.conn.Close()
	}
}

// Retire implements [link.Session].
func (s *Session) Retire() {
	s.mu.Lock()
	s.performLocked(s.life.Retire())
	s.flushLocked(false)
	s.mu.Unlock()
}

// Written implements [link.Session]. The channel is closed after Options.CloseTimeout at the
// latest, even if replies are left.
func (s *Session) Written() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil {
		s.written = make(chan struct{})
		time.AfterFunc(s.opts.CloseTimeout, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closeWrittenLocked()
		})
		s.checkWrittenLocked()
	}
	return s.written
}

// checkWrittenLocked closes the channel s.written, if it exists, once nothing is left to write for
// the peer's calls. It is called when a goroutine releases the write lock. It is also called when a
// call of the peer leaves the session, because that may have dropped frames of the call.
func (s *Session) checkWrittenLocked() {
	if s.written != nil && s.calls == 0 && len(s.writing.control) == 0 && s.writing.batch.b == nil {
		s.closeWrittenLocked()
	}
}

// closeWrittenLocked closes the channel s.written, which must not be nil. It does nothing when
// called again.
func (s *Session) closeWrittenLocked() {
	if !link.IsClosed(s.written) {
		close(s.written)
	}
}

// Closing.
//
// A session that ends writes the queued frames of ended calls, then BYE, and then nothing. A peer
// that reads BYE closes the connection, and only then does this side close it. The order matters:
// closing a connection with unread input, such as frames of a call that the peer is making, may
// reset it, and a reset discards what the peer has not read yet. So the peer has read
// everything when the connection is closed. The exception is a peer that reads nothing for
// Options.CloseTimeout: then this side closes the connection anyway. Such a peer can still read
// the system's buffers. Over shared memory they hold everything that was written.

// Close implements [link.Session]. It does not block: queued frames of ended calls are written in
// the background, see Closing.
func (s *Session) Close(reason error) error {
	s.terminate(reason, wire.ByeClosed, false)
	return nil
}

// fail ends a session whose connection broke or whose peer violated the protocol.
func (s *Session) fail(reason error) {
	err := fmt.Errorf("%s: %w", s.opts.Name, reason)
	if away, ok := errors.AsType[*dismissal](reason); ok {
		s.terminate(err, away.code, false)
		return
	}
	s.terminate(err, wire.ByeProtocol, !errors.Is(reason, wire.ErrProtocol))
}

// terminate ends the session and all its calls for reason. lost means that nothing more can be
// written. Only if the owner closes the session (ByeClosed), queued frames of ended calls are
// still written. After a protocol error the session handles no input, so no credit for these
// frames would arrive.
func (s *Session) terminate(reason error, code wire.ByeCode, lost bool) {
	s.mu.Lock()
	started := s.life.State() != lifecycle.Opening
	do := s.life.End(reason, lost || s.writing.broken != nil)
	if do&lifecycle.EndCalls == 0 {
		s.performLocked(do)
		s.wakeWriterLocked()
		s.mu.Unlock()
		s.closeIf(do)
		return
	}
	s.roles.Ended = true
	s.terminating.Add(1)
	defer s.terminating.Done()
	s.performLocked(do)
	bye := code
	if code == wire.ByeClosed && len(s.live) == 0 {
		bye = wire.ByeDone // no call is cut off
	}
	s.writing.bye = wire.AppendBye(nil, bye, reason.Error())
	tells := code == wire.ByeClosed && s.hasRepliesLocked()
	var after callbacks
	for st := range s.live {
		switch {
		case st == s.reading.accepting: // offerToAcceptor ends this call; its handler can send nothing more
			st.sendErr = reason
		case code == wire.ByeClosed:
			st.abortLocked(reason, tells && !st.caller, &after) // no RESET of our own calls: the peer would count it
		case st.caller && st.id == 0: // no frame of it was or will be written
			st.abortUnreadLocked(link.Unprocessed{Err: reason, Unsent: true}, &after)
		default:
			st.abortUnreadLocked(reason, &after)
		}
	}
	s.wakeWriterLocked()
	s.doLocked(s.roles.NeedReader()) // to see the peer close the connection
	s.mu.Unlock()
	s.closeIf(do)
	after.run()
	switch {
	case !s.opts.Client && code == wire.ByeProtocol && !link.IsClosed(s.helloReceived):
		logger.Infof("the handshake with %s at %v failed: %q", s.opts.Name, s.opts.Peer.LocalAddr, reason)
	case logger.V(2):
		logger.Infof("closing the connection with %s: %q", s.opts.Name, reason)
	}
	s.counted.End()
	close(s.allCallsEnded)
	if started && s.acceptor != nil {
		s.acceptor.Closed(reason)
	}
}

// logger logs like grpc-go, at its levels: failed handshakes of clients always, other ends of
// connections if asked for.
var logger = grpclog.Component("nearcall")

// hasRepliesLocked reports whether replies of ended calls are queued. They are written before BYE.
func (s *Session) hasRepliesLocked() bool {
	for st := range s.live {
		if st.ended {
			return true
		}
	}
	return false
}

// Drains.
//
// A drain has two steps, so that it loses no call that is on its way. First the side that drains
// announces it: it sends DRAIN without a last call, then PING, and goes on accepting calls. The
// peer makes no more calls once it has read this DRAIN. The peer answers the PING after the heads
// of the calls that it has made, so the side that drains knows from the answer that no more calls
// will come. Only then does that side refuse calls. Its second DRAIN names the last call that it
// has seen.
//
// Invariants:
//
//   - The side that drains accepts each call whose HEAD it reads before the answer to its PING.
//     It stops earlier if the peer does not answer in time or the session ends.
//   - The peer writes no HEAD after this answer. The drain ends no call that the peer had opened
//     before it read the announcement, even if no frame of the call was written yet.
//   - A call that is refused has a number above the one in the second DRAIN, so its caller knows
//     that no handler has seen it.
//   - If a session was told to leave, it first drains and then ends, because another call of the
//     peer may be on its way when the last one ends.

// A drain is what a session knows of drains in both directions besides its life. Guarded by mu.
type drain struct {
	ping uint64 // the number of the PING that followed this side's announcement

	limit      lifecycle.DrainLimit
	unnumbered int    // our calls that had no number when the peer announced its drain
	pongs      []byte // PONGs that follow the heads of these calls
}

// Drain implements [link.Session]. The side that accepted the connection leaves: its
// handlers may make calls until they have returned, and then the session ends.
func (s *Session) Drain() <-chan struct{} {
	s.mu.Lock()
	s.performLocked(s.life.StopAccepting())
	s.flushLocked(false)
	s.mu.Unlock()
	return s.drained
}

// handleDrainLocked handles the peer's DRAIN. From now on this side makes no calls, and the peer
// accepts none of its calls with a number above last.
func (s *Session) handleDrainLocked(last uint64, after *callbacks) error {
	d := &s.drain
	if d.limit.Exceeded(last) {
		return wire.ProtocolError("the peer drains twice")
	}
	s.pingLimit.Spoke() // so that the PING after DRAIN does not count as too early
	reason := lifecycle.ErrPeerStops
	if !s.opts.Client {
		reason = lifecycle.ErrClientStops
	}
	do := s.life.PeerDrains(reason)
	s.performLocked(do)
	for st := range s.live {
		switch {
		case !st.caller:
		case st.id > last:
			st.abortLocked(encoded.Unprocessed(reason, st.answered), false, after)
		case st.id == 0 && last < wire.NoLast:
			st.abortLocked(link.Unprocessed{Err: reason, Unsent: true}, false, after)
		case st.id == 0 && d.limit.Drains == 1:
			d.unnumbered++
		}
	}
	return nil
}

// numberedLocked records that a call of this side has got its number and that its head is about to
// be written, or that the call has ended without a number.
func (s *Session) numberedLocked() {
	d := &s.drain
	if d.unnumbered == 0 {
		return
	}
	if d.unnumbered--; d.unnumbered == 0 {
		s.writing.control = append(s.writing.control, d.pongs...)
		d.pongs = nil
	}
}

// releaseCallLocked frees the slot of one of this side's calls, or passes it to the call that has
// been held for longest.
func (s *Session) releaseCallLocked() {
	st := s.writing.held.first
	// Calls that were opened before HELLO arrived may exceed the limit in it.
	if limit := s.hello.Calls; st == nil || limit > 0 && s.ownCalls > limit {
		s.ownCalls--
		return
	}
	s.writing.held.remove(st)
	st.held = false
	st.scheduleLocked()
	s.wakeWriterLocked()
	wait.Unpark(s.wakeLocked(&st.sender)) // in NewStream
}

// PINGs ask whether the peer is alive, and follow the announcement of a drain. [lifecycle.Life] says
// when.

// appendPingLocked appends a PING to writing.control, and returns the PING's number.
func (s *Session) appendPingLocked() uint64 {
	s.pings++
	var data [8]byte
	binary.LittleEndian.PutUint64(data[:], s.pings)
	s.writing.control = wire.AppendPing(s.writing.control, wire.KindPing, data)
	return s.pings
}

// handlePingLocked answers a PING, after the heads of the calls that were open when the peer announced
// a drain. A server also enforces its minimum time between PINGs.
func (s *Session) handlePingLocked(data [8]byte) error {
	to := &s.writing.control
	if s.drain.unnumbered > 0 {
		to = &s.drain.pongs
	}
	*to = wire.AppendPing(*to, wire.KindPong, data)
	if s.opts.Client {
		return nil
	}
	if least, yes := s.pingLimit.Exceeded(s.opts.Config, len(s.live) == 0); yes {
		return &dismissal{wire.ByePings, fmt.Sprintf("too many pings: no more than one in %v is taken", least)}
	}
	return nil
}

// A dismissal is the error that ends a session because its peer sends too many PINGs. That breaks
// no rule of the protocol.
type dismissal struct {
	code wire.ByeCode
	text string
}

func (d *dismissal) Error() string { return d.text }
