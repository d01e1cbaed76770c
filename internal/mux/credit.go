package mux

import "github.com/nearcall/nearcall/internal/wire"

// maxPromised bounds Options.Window, so that what [waits.Granted] returns is an int on each
// system.
const maxPromised = 1 << 30

// returnCredit returns the credit of n received bytes, once it is worth a frame. The
// session's mu is held.
func (st *stream) returnCredit(n int) {
	if grant := st.in.flow.Received(n); grant > 0 {
		st.grantCredit(grant)
	}
}

// grantCredit grants the peer n bytes of credit, unless it will send no more messages.
// The session's mu is held.
func (st *stream) grantCredit(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.Closed && st.in.Err == nil {
		st.in.flow.Credit += n
		s.writing.control = wire.AppendCredit(s.writing.control, st.id, int64(n))
	}
}

// grantForMessage grants the credit that the peer needs to send the rest of message it, for which
// a receiver waits. If the message is complete but no credit is left, it grants credit for
// another message: Invoke takes the reply only when the call has ended, and an invalid second
// reply must be able to arrive. It reports whether a CREDIT frame was queued. The session's mu is
// held.
func (st *stream) grantForMessage(it *item) bool {
	before := len(st.session.writing.control)
	grant := 0
	switch {
	case it.Missing > 0:
		st.markReceived(it)
		grant = st.in.flow.ForMessage(it.Missing, st.session.opts.MaxWindow)
	case st.in.flow.Credit <= 0:
		grant = it.Size + wire.MessageCost
	}
	if grant > 0 {
		st.grantCredit(grant)
	}
	return grant > 0 || len(st.session.writing.control) > before
}

// addCredit adds n to *to, which may be negative after a placed message that was larger
// than the credit.
func addCredit(to *int64, n int64) error {
	if *to > wire.MaxCredit-n {
		return protocolError("more credit than %d", wire.MaxCredit)
	}
	*to += n
	return nil
}
