package mux

import "github.com/nearcall/nearcall/internal/wire"

// Unread messages.
//
// A stream that nobody reads stops at its window, and stops no other: the credit of
// the connection is given back as bytes arrive. A peer may have many such streams, so
// it is given back only while less than windowsUnread windows are unread on all
// of them together.
//
// Invariants:
//   - inbox.unread is the credit that the stream's messages took which nobody has
//     received or waits for, and Session.unread the sum of it over all streams that
//     are live.
//   - Where credit is withheld, as much is unread. Whoever receives some of it, or ends
//     its stream, gives the credit back. So a message that a receiver waits for does
//     not count: it may be larger than all of the bound.

// windowsUnread is how many windows of a stream may be unread on a connection.
const windowsUnread = 256

// returnConnCredit gives the connection's credit back once it is worth a frame, unless too much
// is unread. mu is held.
func (s *Session) returnConnCredit() {
	if s.taken >= s.opts.ConnWindow/4 && s.unread < windowsUnread*s.opts.Window {
		s.control = wire.AppendCredit(s.control, 0, int64(s.taken))
		s.connIn += s.taken
		s.taken = 0
	}
}

// addUnread counts n bytes as unread. The session's mu is held.
func (st *stream) addUnread(n int) {
	st.in.unread += n
	st.session.unread += n
}

// removeUnread counts n bytes no more, or as many as do count: none of a stream that the
// session has forgotten. The session's mu is held.
func (st *stream) removeUnread(n int) {
	n = min(n, st.in.unread)
	st.in.unread -= n
	st.session.unread -= n
	st.session.returnConnCredit()
}

// markReceived counts what has arrived of a message no more. It has been received, or is
// waited for, and counts once. The session's mu is held.
func (st *stream) markReceived(it *item) {
	if it.counts {
		it.counts = false
		st.removeUnread(it.size - it.missing + wire.MessageCost)
	}
}
