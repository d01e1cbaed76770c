package mux

import "github.com/nearcall/nearcall/internal/link"

// Rash peers.
//
// A call that is reset at once costs its caller a few bytes, but the callee a goroutine
// and a handler. So if a peer resets more of its calls than end otherwise, its new
// calls are handed to the acceptor only after everything that was read has been
// handled: a call that was opened and reset in the same read reaches no handler. Such a
// peer need not be malicious. A client whose calls exceed their deadlines sends the
// same, and the calls that it has already given up need no work.

// maxRash bounds Session.rash, and so how many calls must end normally to make up for
// earlier resets. A peer is rash from half of it on.
const maxRash = 256

// A lateCall was opened by the peer and has not been offered to the acceptor yet.
type lateCall struct {
	st   *stream
	open *link.CallHeader
}

// countReset records that the peer reset one of its own calls. mu is held.
func (s *Session) countReset() { s.rash = min(s.rash+1, maxRash) }

// isRash reports whether the peer's new calls wait until all input has been handled. mu
// is held.
func (s *Session) isRash() bool { return s.rash >= maxRash/2 }

// offerLateCalls offers the delayed calls to the acceptor, except those that have been
// reset.
func (s *Session) offerLateCalls() {
	for i, c := range s.reading.late {
		s.reading.late[i] = lateCall{}
		s.mu.Lock()
		wanted := c.st.reason == nil
		s.lending.lendable = -1
		if wanted {
			s.reading.accepting = c.st
		}
		s.mu.Unlock()
		if wanted {
			s.offerToAcceptor(c.st, c.open)
		}
	}
	s.reading.late = s.reading.late[:0]
}
