package mux

import (
	"errors"
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// How a session ends.

// leave lets the session end, for reason, when no call is left. mu is held.
func (s *Session) leave(reason error) {
	if s.leaving == nil {
		s.leaving = reason
	}
	s.closeIfDrained()
}

// Retire implements [link.Session].
func (s *Session) Retire() {
	s.mu.Lock()
	s.retire(errors.New("the connection is retired"))
	s.flush(false)
}

// retire lets this side make no more calls, drains, and leaves. mu is held.
func (s *Session) retire(reason error) {
	s.refuse(reason)
	s.announce()
	s.leave(reason)
}

// refuse lets this side make no more calls, for reason. mu is held.
func (s *Session) refuse(reason error) {
	if s.refusal != nil {
		return
	}
	s.refusal = reason
	close(s.done)
	s.refuseQueued()
}

// closeIfDrained ends a session that leaves, once no call is left and no call of the peer can be
// on its way. mu is held.
func (s *Session) closeIfDrained() {
	if s.leaving == nil || s.ended != nil || !s.started || s.live.first != nil || s.closing {
		return
	}
	if !link.IsClosed(s.drained) {
		s.announce() // calls closeIfDrained again when no more calls are accepted
		s.wakeWriter()
		return
	}
	s.closing = true
	s.terminating.Go(s.closeDrained)
}

// closeDrained ends a session that had no call left, unless this side has made a call since.
func (s *Session) closeDrained() {
	s.mu.Lock()
	if s.live.first != nil {
		s.closing = false
		s.mu.Unlock()
		return
	}
	reason := fmt.Errorf("%s: %w", s.opts.Name, s.leaving)
	s.refuse(reason)
	s.mu.Unlock()
	s.terminate(reason, wire.ByeDone, false)
}

// Written implements [link.Session]. The session drops what it cannot write within
// Options.Farewell.
func (s *Session) Written() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil {
		s.written = make(chan struct{})
		time.AfterFunc(s.opts.Farewell, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closeWritten()
		})
		s.checkWritten()
	}
	return s.written
}

// checkWritten closes written, if there is one, when nothing of the peer's calls is left to
// write. It is called whenever the pen is put down, and when a call of the peer leaves the
// session, which may have dropped what it had left. mu is held.
func (s *Session) checkWritten() {
	if s.written != nil && s.calls == 0 && len(s.writing.control) == 0 && s.writing.batch.b == nil {
		s.closeWritten()
	}
}

// closeWritten closes written, which must not be nil, once. mu is held.
func (s *Session) closeWritten() {
	if !link.IsClosed(s.written) {
		close(s.written)
	}
}

// Farewells.
//
// A session that ends writes what ended calls have left in their queues, then BYE, and
// then nothing. A peer that reads BYE closes the connection, and only then does this
// side close it. The order matters: closing a connection with unread input, such as
// frames of a call that the peer is making, may reset it, and a reset discards what the
// peer has not read yet. So when the session is gone, the peer has read everything. If
// the peer reads nothing for Options.Farewell, the connection is closed anyway. The
// peer may then still read what the system has buffered, which for shared memory is
// everything that was written.

// Close implements [link.Session]. It does not block: what ended calls have left is
// written in the background, see Farewells.
func (s *Session) Close(reason error) error {
	s.terminate(reason, wire.ByeClosed, false)
	return nil
}

// fail ends a session whose connection broke or whose peer violated the protocol.
func (s *Session) fail(reason error) {
	err := fmt.Errorf("%s: %w", s.opts.Name, reason)
	var away *dismissal
	if errors.As(reason, &away) {
		s.terminate(err, away.code, false)
		return
	}
	s.terminate(err, wire.ByeProtocol, !errors.Is(reason, wire.ErrProtocol))
}

// terminate ends the session and all its calls for reason. lost means that nothing more
// can be written. Only if the owner closes the session (ByeClosed) do ended calls still
// write what they have left: after a protocol error no input is handled, so no credit
// would arrive for it.
func (s *Session) terminate(reason error, code wire.ByeCode, lost bool) {
	s.mu.Lock()
	lost = lost || s.writing.broken != nil
	if lost {
		s.writing.lost = true
		_ = s.conn.Close()
	}
	if s.ended != nil {
		s.wakeWriter()
		s.mu.Unlock()
		return
	}
	s.ended, s.roles.Over = reason, true
	s.terminating.Add(1)
	defer s.terminating.Done()
	s.refuse(reason)
	s.refuseCalls()
	bye := code
	if code == wire.ByeClosed && s.live.first == nil {
		bye = wire.ByeDone // no call is cut off
	}
	s.writing.bye = wire.AppendBye(nil, bye, reason.Error())
	tells := code == wire.ByeClosed && s.hasReplies()
	var after callbacks
	for st := s.live.first; st != nil; {
		next := st.nextLive
		if st == s.reading.accepting { // offerToAcceptor ends it, and its handler can send nothing more
			st.sendErr = reason
			st = next
			continue
		}
		why := reason
		if code != wire.ByeClosed && st.caller && st.id == 0 {
			why = link.Unprocessed{Err: reason} // no frame of it was or will be written
		}
		if code != wire.ByeClosed {
			st.abortUnread(why, &after)
		} else {
			st.abort(why, tells && !st.caller, &after) // the peer would count RESETs of our calls
		}
		st = next
	}
	started := s.started
	if !lost && started {
		s.closeTimer = time.AfterFunc(s.opts.Farewell, s.closeConn)
	}
	s.wakeWriter()
	s.do(s.roles.NeedReader()) // to see the peer close the connection
	s.mu.Unlock()
	if !started {
		_ = s.conn.Close()
	}
	after.run()
	close(s.allCallsEnded)
	if started && s.acceptor != nil {
		s.acceptor.Closed(reason)
	}
}

// hasReplies reports whether replies of ended calls are left, which are written before BYE. mu is held.
func (s *Session) hasReplies() bool {
	for st := s.live.first; st != nil; st = st.nextLive {
		if st.ended {
			return true
		}
	}
	return false
}

// closeConn closes the connection at once. What is queued is lost.
func (s *Session) closeConn() {
	s.mu.Lock()
	s.writing.lost = true
	s.wakeWriter()
	s.mu.Unlock()
	_ = s.conn.Close()
}
