package mux

import "github.com/nearcall/nearcall/internal/wire"

// Unread messages.
//
// A stream that is not read stops at its own window and does not block other streams,
// because the connection's credit is returned as bytes arrive. To bound the memory for
// many such streams, the connection's credit is returned only while fewer than
// windowsUnread windows are unread on all streams together.
//
// Invariants:
//   - inbox.unread is the credit of the stream's messages that have neither been
//     received nor have a receiver waiting for them. Session.unread is its sum over all
//     live streams.
//   - Credit is withheld only while at least windowsUnread windows are unread. When a message is
//     received, or its stream ends, it no longer counts, and the credit is returned. A message
//     that a receiver waits for does not count, because it alone may be larger than the bound.

// windowsUnread is how many stream windows may be unread on a connection.
const windowsUnread = 256

// returnConnCredit returns the connection's credit once it is worth a frame, unless too
// much is unread. mu is held.
func (s *Session) returnConnCredit() {
	if s.taken >= s.opts.ConnWindow/4 && s.unread < windowsUnread*s.opts.Window {
		s.writing.control = wire.AppendCredit(s.writing.control, 0, int64(s.taken))
		s.connIn += s.taken
		s.taken = 0
	}
}

// addUnread counts n bytes as unread. The session's mu is held.
func (st *stream) addUnread(n int) {
	st.in.unread += n
	st.session.unread += n
}

// removeUnread stops counting n bytes as unread, or all if fewer count: a stream that has left
// the session counts none. The session's mu is held.
func (st *stream) removeUnread(n int) {
	n = min(n, st.in.unread)
	st.in.unread -= n
	st.session.unread -= n
	st.session.returnConnCredit()
}

// markReceived stops counting the arrived part of a message as unread, because the
// message was received or a receiver waits for it. It does nothing when called again.
// The session's mu is held.
func (st *stream) markReceived(it *item) {
	if it.Extra.counts {
		it.Extra.counts = false
		st.removeUnread(it.Size - it.Missing + wire.MessageCost)
	}
}
