package mux

import "github.com/nearcall/nearcall/internal/wire"

// Credit of calls.
//
// Options.Window is a promise to the sender: while less than that has been sent and not been
// received, Send does not wait. The receiver returns the credit of what was received in portions,
// because each CREDIT frame, and each sender that it wakes, costs as much as several small messages.
// So it grants a portion more than it has promised.
//
// Invariants, for each direction of a call, with nothing on its way:
//   - inbox.credit, the bytes that were not received, and inbox.taken add up to inbox.window plus
//     inbox.advance. The sender has inbox.credit left.
//   - inbox.taken is less than holdsBack, and inbox.window is at least Options.Window plus
//     holdsBack. So a sender that has no credit left is Options.Window or more ahead.
//   - A sender waits in Send only if it has no credit left for what it has queued, or if it has
//     queued as much as may wait to be written.

// granted returns the window that a receiver grants at first, if it promises window bytes.
func granted(window int) int { return window + window/2 }

// maxPromised bounds Options.Window, so that what is granted is an int on each system.
const maxPromised = 1 << 30

// holdsBack returns how much credit may be taken and not returned, in bytes.
func (in *inbox) holdsBack() int { return in.window / 3 }

// returnCredit returns the credit of n received bytes, once it adds up to what may be held
// back. The session's mu is held.
func (st *stream) returnCredit(n int) {
	in := &st.in
	early := min(in.advance, n)
	in.advance -= early
	if in.taken += n - early; in.taken >= in.holdsBack() {
		st.grantCredit(in.taken)
		in.taken = 0
	}
}

// grantCredit grants the peer n bytes of credit, unless it will send no more messages.
// The session's mu is held.
func (st *stream) grantCredit(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.Closed && st.in.Err == nil {
		st.in.credit += n
		s.control = wire.AppendCredit(s.control, st.id, int64(n))
	}
}

// grantForMessage grants the credit that the peer needs to send the rest of it, a
// message that is being waited for. If the message is complete but no credit is left,
// it grants credit for another message: Invoke takes the reply only when the call has
// ended, and an invalid second reply must be able to arrive. It reports whether a
// CREDIT frame was queued. The session's mu is held.
func (st *stream) grantForMessage(it *item) bool {
	if it.Missing == 0 {
		if st.in.credit > 0 {
			return false
		}
		st.grantCredit(it.Size + wire.MessageCost)
		return true
	}
	before := len(st.session.control)
	st.markReceived(it)
	short := it.Missing - st.in.credit
	if short <= 0 {
		return len(st.session.control) > before
	}
	if !st.growWindow(short) {
		st.in.advance += short
		st.grantCredit(short)
	}
	return true
}

// growWindow doubles the window, or grows it by minGrowth bytes if that is more, because
// the receiver waits for bytes that the peer has no credit for. It stops at
// Options.MaxWindow. It reports whether the window has grown by at least minGrowth bytes.
// The session's mu is held.
func (st *stream) growWindow(minGrowth int) bool {
	in := &st.in
	room := st.session.opts.MaxWindow - in.window
	if room <= 0 || room < minGrowth {
		return false
	}
	n := min(max(minGrowth, in.window), room)
	in.window += n
	st.grantCredit(n)
	return true
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
