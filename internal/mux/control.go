package mux

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/wire"
)

// maxOwed bounds the control frames that wait for a peer that does not read, in
// bytes: PONG, RESET, CREDIT and others.
const maxOwed = 4 << 20

// checkOwedLocked fails if the peer keeps sending frames that need an answer but does not read the
// answers.
func (s *Session) checkOwedLocked() error {
	if n := len(s.writing.control) + len(s.drain.pongs); n > maxOwed {
		return fmt.Errorf("the peer does not read the %d bytes that it is owed", n)
	}
	return nil
}

func (s *Session) handleHello(body []byte) error {
	h, err := wire.ParseHello(body)
	if err != nil {
		return err
	}
	if s.reading.isMet {
		return wire.ProtocolError("the peer says hello twice")
	}
	var after callbacks
	s.mu.Lock()
	if s.writing.broken == nil {
		_ = s.conn.SetReadDeadline(time.Time{})
	}
	for st := range s.live {
		st.flow.Credit += h.Stream - s.hello.Stream // cannot overflow: no CREDIT is accepted before HELLO
		after.unpark(s.wakeLocked(&st.sender))
		st.scheduleLocked()
	}
	err = addCredit(&s.writing.connOut, h.Connection-s.hello.Connection)
	s.hello, s.reading.isMet = h, true
	s.life.PeerAllows(fromMillis(h.Ping), fromMillis(h.IdlePing))
	s.mu.Unlock()
	after.run()
	s.counted.Begin(s.opts.Client, s.opts.Peer.Path)
	close(s.helloReceived)
	return err
}

// handleControlLocked handles the frames that carry no part of a call.
func (s *Session) handleControlLocked(f wire.Frame, after *callbacks) error {
	switch f.Kind {
	case wire.KindCredit:
		n, err := wire.ParseCredit(f.Body)
		if err != nil {
			return err
		}
		if f.Stream == 0 {
			return addCredit(&s.writing.connOut, n)
		}
		st, err := s.lookupLocked(f.Stream)
		if st != nil {
			if err := addCredit(&st.flow.Credit, n); err != nil {
				return err
			}
			st.scheduleLocked()
			if st.flow.TakesMore(s.writing.backlog) { // otherwise its sender would wake in vain for each byte of credit
				after.unpark(s.wakeLocked(&st.sender))
			}
		}
		return err
	case wire.KindReset:
		code, text, err := wire.ParseReset(f.Body)
		if err != nil {
			return err
		}
		st, err := s.lookupLocked(f.Stream)
		if st != nil {
			st.abortUnreadLocked(encoded.ReasonOf(code, text, st.answered), after)
		}
		return err
	case wire.KindPing:
		data, err := wire.ParsePing(f.Body)
		if err != nil {
			return err
		}
		return s.handlePingLocked(data)
	case wire.KindReturn:
		at, err := wire.ParseReturn(f.Body)
		if err == nil && s.placer == nil {
			err = wire.ProtocolError("a place is returned where there are none")
		}
		if err == nil {
			if wrong := s.placer.Returned(at); wrong != nil {
				err = fmt.Errorf("%w: %w", wire.ErrProtocol, wrong)
			}
		}
		return err
	case wire.KindPong:
		data, err := wire.ParsePing(f.Body)
		if err == nil && s.life.Drain() == lifecycle.Announced && binary.LittleEndian.Uint64(data[:]) == s.drain.ping {
			s.performLocked(s.life.PeerAnswers())
		}
		return err
	case wire.KindDrain:
		last, err := wire.ParseDrain(f.Body)
		if err != nil {
			return err
		}
		return s.handleDrainLocked(last, after)
	case wire.KindBye:
		_, text, err := wire.ParseBye(f.Body)
		if err != nil {
			return err
		}
		return byeError(text)
	}
	return nil // other kinds are extensions, which are ignored
}

// A byeError is the peer's BYE, as an error.
type byeError string

func (text byeError) Error() string { return cmp.Or(string(text), "the peer ended the connection") }

// returnCreditLocked counts n received bytes, and returns their credit to the peer once enough has
// accumulated for a CREDIT frame.
func (st *stream) returnCreditLocked(n int) {
	if grant := st.in.flow.Received(n); grant > 0 {
		st.grantCreditLocked(grant)
	}
}

// grantCreditLocked grants the peer n bytes of credit if it may still send messages.
func (st *stream) grantCreditLocked(n int) {
	s := st.session
	if s.streams[st.id] == st && !st.in.Closed && st.in.Err == nil {
		st.in.flow.Credit += n
		s.writing.control = wire.AppendCredit(s.writing.control, st.id, int64(n))
	}
}

// grantForMessageLocked grants the credit that the peer needs to send the rest of a message for
// which a receiver waits. If the message is complete but no credit is left, it grants credit for
// another message. This is for Invoke, which takes the reply only when the call has ended: an
// invalid second reply must be able to arrive before the end. It reports whether a CREDIT frame was
// queued.
func (st *stream) grantForMessageLocked(it *item) bool {
	before := len(st.session.writing.control)
	grant := 0
	switch {
	case it.Missing > 0:
		st.markReceivedLocked(it)
		grant = st.in.flow.ForMessage(it.Missing, st.session.opts.Config.MaxStreamWindow)
	case st.in.flow.Credit <= 0:
		grant = it.Size + wire.MessageCost
	}
	if grant > 0 {
		st.grantCreditLocked(grant)
	}
	return grant > 0 || len(st.session.writing.control) > before
}

// addCredit adds n to *to, which may be negative after a placed message that was larger
// than the credit.
func addCredit(to *int64, n int64) error {
	if *to > wire.MaxCredit-n {
		return wire.ProtocolError("more credit than %d", wire.MaxCredit)
	}
	*to += n
	return nil
}

// Unread messages.
//
// A stream that is not read stops at its own window and does not block other streams,
// because the connection's credit is returned as bytes arrive. To bound the memory for
// many such streams, the connection's credit is returned only while fewer than
// windowsUnread windows are unread on all streams together.
//
// Invariants:
//   - inbox.unread is the credit of the stream's unread messages, without a message that a
//     receiver waits for. Session.unread is its sum over all live streams.
//   - Credit is withheld only while at least windowsUnread windows are unread. A message no longer
//     counts once it is received or its stream has ended, and then its credit is returned. A
//     message that a receiver waits for does not count, because it alone may be larger than the
//     bound.

// windowsUnread limits the unread bytes of a connection, counted in windows of a stream.
const windowsUnread = 256

// returnConnCreditLocked returns the connection's credit once enough has accumulated for a CREDIT
// frame, and while not too many bytes are unread.
func (s *Session) returnConnCreditLocked() {
	if s.taken >= s.opts.Config.ConnWindow/4 && s.unread/windowsUnread < s.opts.Config.StreamWindow {
		s.writing.control = wire.AppendCredit(s.writing.control, 0, int64(s.taken))
		s.connIn += s.taken
		s.taken = 0
	}
}

// addUnreadLocked counts n bytes as unread.
func (st *stream) addUnreadLocked(n int) {
	st.in.unread += n
	st.session.unread += n
}

// removeUnreadLocked stops counting n bytes as unread. A stream that has left the session counts
// none.
func (st *stream) removeUnreadLocked(n int) {
	n = min(n, st.in.unread)
	st.in.unread -= n
	st.session.unread -= n
	st.session.returnConnCreditLocked()
}

// markReceivedLocked stops counting the arrived part of a message as unread, because the message
// was received or a receiver waits for it. It does nothing when called again.
func (st *stream) markReceivedLocked(it *item) {
	if it.Extra.counts {
		it.Extra.counts = false
		st.removeUnreadLocked(it.Size - it.Missing + wire.MessageCost)
	}
}
