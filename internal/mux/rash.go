package mux

import "github.com/nearcall/nearcall/internal/link"

// Rash peers.
//
// A call costs its caller a few bytes, and the callee a goroutine and a handler, also
// where the caller gives it up at once. So the calls of a peer that gives up more of
// them than end otherwise are handed to the acceptor only when all that was read is
// taken in: one that was opened and reset in the same read is seen by no handler. Such
// a peer need not mean harm. A client whose calls run into their deadlines sends the
// same, and what it has given up already is not worth doing.

// maxRash bounds how many calls that end otherwise make up for those that were given
// up. A peer is rash from half of it on.
const maxRash = 256

// A lateCall was opened, and the acceptor does not know it yet.
type lateCall struct {
	st   *stream
	open *link.CallHeader
}

// countReset takes in that the peer gives a call of its own up. mu is held.
func (s *Session) countReset() { s.rash = min(s.rash+1, maxRash) }

// isRash reports whether the peer's calls are to wait until all is taken in. mu is
// held.
func (s *Session) isRash() bool { return s.rash >= maxRash/2 }

// offerLateCalls hands those calls over that waited and that nobody has given up.
func (s *Session) offerLateCalls() {
	for i, c := range s.late {
		s.late[i] = lateCall{}
		s.mu.Lock()
		wanted := c.st.reason == nil
		if wanted {
			s.accepting = c.st
		}
		s.mu.Unlock()
		if wanted {
			s.offerToAcceptor(c.st, c.open)
		}
	}
	s.late = s.late[:0]
}
