package quic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// A stream is one side of a call. Each call has its own QUIC stream. It implements [link.Stream].
type stream struct {
	session  *session
	qs       *q.Stream
	caller   bool
	deadline time.Time // of a call of this side; zero for none
	direct   bool      // the caller of Invoke waits, and reads the stream itself
	sends    string    // the compressor of sent messages; used by the sender only
	input    input

	holds int // while above 0, the peer cannot open another call in place of this one; guarded by session.mu

	mu      sync.Mutex
	onAbort func(error)
	unwatch func() bool // stops watching whether the peer asks this side to stop sending
	reason  error       // why the call was aborted
	ended   bool        // the end was sent, or received and delivered; then the call cannot be aborted
	left    bool        // the session has forgotten the stream
	out     sending
	in      inbox
}

// forgetLocked removes the stream from the session.
func (st *stream) forgetLocked() {
	if st.left {
		return
	}
	st.left = true
	st.in.dropLocked(st)
	s := st.session
	s.mu.Lock()
	delete(s.live, st)
	s.performLocked(s.life.CallEnds())
	s.mu.Unlock()
	st.unhold()
}

// unhold is called twice: when the acceptor has taken or refused the call, and when the call has
// ended. Only after both can the peer open another call. So calls that are reset at once do not
// pile up in front of a busy acceptor.
func (st *stream) unhold() {
	if st.caller {
		return
	}
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.holds--; st.holds > 0 {
		return
	}
	s.spent = append(s.spent, st.qs)
	switch {
	case len(s.spent) > s.maxSpent():
		s.releaseSpentLocked()
	case s.release == nil:
		s.release = time.AfterFunc(releaseDelay, s.onRelease)
	}
}

// The session releases the credit of ended calls together with the next reply, but at the latest
// after releaseDelay, or when more than maxSpent of these calls wait. If the session released it
// at once, each release would take a separate packet.
const releaseDelay = 20 * time.Millisecond

// onRelease is called when credit has waited for a reply that did not come.
func (s *session) onRelease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release = nil
	s.releaseSpentLocked()
}

// releaseSpentLocked releases the credit of ended calls.
func (s *session) releaseSpentLocked() {
	for i, qs := range s.spent {
		qs.ReleaseStreamCredit()
		s.spent[i] = nil
	}
	s.spent = s.spent[:0]
}

func (st *stream) Abort(reason error) { st.abort(reason, true) }

// abort ends the call for reason, if it has not ended. If tell is set, a callee sends the text of
// reason to the peer.
func (st *stream) abort(reason error, tell bool) {
	order.Add(1)
	st.mu.Lock()
	if st.ended || st.reason != nil {
		st.mu.Unlock()
		return
	}
	st.reason = reason
	f := st.onAbort
	if f != nil && !st.caller { // the callee learns of the abort before its Send and Recv return
		st.mu.Unlock()
		f(reason)
		st.mu.Lock()
	}
	st.in.Close(reason)
	if st.out.err == nil {
		st.out.err = reason
	}
	st.resetLocked(reason, tell)
	st.forgetLocked()
	st.wakeLocked()
	st.mu.Unlock()
	if f != nil && st.caller {
		f(reason)
	}
}

// wakeLocked wakes all that wait for the stream.
func (st *stream) wakeLocked() {
	wait.Unpark(st.out.sender.Wake())
	wait.Unpark(st.in.receiver.Wake())
	wait.Unpark(st.in.pump.Wake())
}

// resetLocked ends both directions of the QUIC stream.
func (st *stream) resetLocked(reason error, tell bool) {
	if st.unwatch != nil {
		st.unwatch()
	}
	code, text := encoded.ResetOf(reason)
	told := tell && text != "" && !st.caller && !st.out.writing && !st.out.closed &&
		st.qs.TryWriteAll(wire.AppendReset(nil, 1, code, text)) == nil
	switch {
	case told:
		st.closeSendLocked()
	case !st.out.closed:
		st.qs.CancelWrite(q.StreamErrorCode(code))
	}
	st.qs.CancelRead(q.StreamErrorCode(code))
}

// failed ends the call because reading has failed, or the input breaks a rule.
func (st *stream) failed(err error) {
	if errors.Is(err, wire.ErrProtocol) {
		st.abort(encoded.Because{Text: err.Error(), Kind: link.ErrBroken}, true)
		return
	}
	if e, ok := errors.AsType[*q.StreamError](err); ok && !e.Remote {
		return // this side has ended the call
	}
	st.abort(st.reasonOf(err), false)
}

// reasonOf returns the reason for ending the call after err, an error of quic-go.
func (st *stream) reasonOf(err error) error {
	if e, ok := errors.AsType[*q.StreamError](err); ok {
		return st.resetReason(wire.ResetCode(e.ErrorCode), "the peer has reset the call")
	}
	s := st.session
	s.mu.Lock()
	ended := s.life.Reason()
	s.mu.Unlock()
	if ended != nil {
		return ended
	}
	return s.reasonOf(err)
}

// resetReason returns the reason for ending the call after a reset by the peer.
//
// A peer refuses calls once it drains. The packet with its DRAIN can be lost, and then the DRAIN
// arrives after the refusal. So a refusal already stops this side from making calls on the
// connection.
func (st *stream) resetReason(code wire.ResetCode, text string) error {
	st.mu.Lock()
	answered := st.in.answered
	st.mu.Unlock()
	reason := encoded.ReasonOf(code, text, answered)
	if st.caller && errors.Is(reason, link.ErrUnprocessed) {
		s := st.session
		s.mu.Lock()
		s.performLocked(s.life.RefuseOwn(s.noMoreCalls()))
		s.mu.Unlock()
	}
	return reason
}

func (st *stream) OnAbort(f func(error)) {
	st.mu.Lock()
	st.onAbort = f
	reason := st.reason
	st.mu.Unlock()
	if reason != nil {
		f(reason)
	}
}

var errShort = fmt.Errorf("%w: the stream ends before the call", wire.ErrProtocol)

// Invoke implements [link.Session]. The caller reads its reply itself.
func (s *session) Invoke(ctx context.Context, c *link.UnaryCall) error {
	if err := link.ContextErr(ctx); err != nil {
		return err
	}
	message, compressed, err := encoded.Encode(c.Message(), c.Encoding)
	if err != nil {
		return err
	}
	defer message.Free()
	st, err := s.open(ctx, &c.CallHeader)
	if err != nil {
		return err
	}
	st.direct, st.in.wanted = true, true
	if ctx.Done() != nil {
		defer wait.AfterFunc(ctx, func() { st.abort(link.ContextEnd(wait.DoneErr(ctx)), true) })()
	}
	step := wire.Step{
		Stream: 1, Open: &c.CallHeader, Timeout: timeoutOf(c.Deadline),
		HasMessage: true, Message: message.B, Compressed: compressed, HalfClose: true,
	}
	st.mu.Lock()
	if st.out.err == nil {
		st.sendLocked(&step)
	}
	for !st.in.Replied(c.MaxReply) {
		st.awaitLocked()
	}
	replies, wrong := st.in.Collect(c)
	st.ended = wrong == nil
	st.mu.Unlock()
	if wrong != nil {
		st.abort(context.Canceled, true)
	}
	return st.in.DecodeReplies(c, replies, nil, wrong)
}
