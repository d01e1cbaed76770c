package mux

import "github.com/nearcall/nearcall/internal/link"

// Peers that reset too many calls.
//
// A call that is reset at once costs its caller a few bytes, but the callee a goroutine and a
// handler. So if a peer resets more of its calls than end otherwise, the session hands its new
// calls to the acceptor only after it has handled all that it has read: a call that was opened
// and reset in the same read reaches no handler. Such a peer need not be malicious. A client
// whose calls exceed their deadlines does the same, and the calls that it has already given up
// need no work.

// maxResets bounds Session.resets, and so how many calls must end normally to make up for earlier
// resets. From half of it on, the peer's new calls wait.
const maxResets = 256

// A lateCall is a call of the peer that waits to be offered to the acceptor.
type lateCall struct {
	st   *stream
	open *link.CallHeader
}

// countReset records that the peer has reset one of its calls. mu is held.
func (s *Session) countReset() { s.resets = min(s.resets+1, maxResets) }

// resetsTooMuch reports whether the peer's new calls wait until all input has been handled. mu
// is held.
func (s *Session) resetsTooMuch() bool { return s.resets >= maxResets/2 }

// offerLateCalls offers the calls that have waited to the acceptor, except those that the peer
// has reset.
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
