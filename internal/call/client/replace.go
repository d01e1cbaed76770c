package client

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/wait"
)

// This file replaces a failed attempt with another. See attempt.go for the invariants.

// onSendError handles a failure to send a message on a. It retries the call if no handler has
// seen it or its policy says so, and reports whether the message must be sent on another attempt.
// lost is the error if the call is not retried although no handler has seen it.
func (s *clientStream) onSendError(a *attempt, err error) (another bool, lost error) {
	switch {
	case isUnprocessed(err):
		lost = s.retryAttempt(a, failure{reason: err})
		return lost == nil, lost
	case s.sendAttempt != nil, !s.info.retry.hasPolicy(), unfit(err):
		return false, nil
	}
	// The policy depends on how the attempt ended, so receive its end.
	s.receiveUntil(func() bool { return s.current != a || s.committed }, func() {
		if s.recvAttempt != nil || s.end != nil || s.recvErr != nil {
			return
		}
		if _, done, err := s.receiveFromLocked(a, message.Sink{}); done && err != nil && s.end == nil {
			s.finish(err) // the stream was aborted
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != a, nil
}

// A failure says how an attempt failed. One field is set, or none if the attempt has not failed
// or its failure is never retried.
type failure struct {
	reason error     // why the attempt was lost or its stream was aborted
	end    *link.End // the peer ended the call, and sent no header or message before
}

func (f failure) failed() bool { return f.reason != nil || f.end != nil }

// status returns the error of the call if it is not retried.
func (f failure) status() error {
	if f.end != nil {
		return errorOf(f.end.Status)
	}
	return call.LinkStatus(f.reason)
}

// failureOf returns the failure of an attempt. end is the end that was received, if any, and err
// is the error of receiving. answered says that a header or a message was received.
func (ci *callInfo) failureOf(end *link.End, err error, answered bool) failure {
	switch {
	case isUnprocessed(err):
		return failure{reason: err}
	case answered, ci.retry == nil, unfit(err):
	case err != nil:
		return failure{reason: err}
	case end != nil && end.Status != nil:
		return failure{end: withDetails(end)}
	}
	return failure{}
}

// unaryFailure returns the failure of an attempt with Session.Invoke, which has set u and returned
// err. If the request exceeds the replay limit, it returns no failure, so that the call is not
// retried.
func (ci *callInfo) unaryFailure(u *link.UnaryCall, req any, err error) failure {
	answered := u.Header != nil || u.Replied || u.ReplyError != nil || err == link.ErrReplies
	why := ci.failureOf(&u.End, err, answered)
	if why.failed() && !isUnprocessed(err) {
		msg := call.MessageOf(req, ci.codec)
		if ci.given != nil {
			msg = *ci.given
		}
		if !fitsReplay(&msg, ci.maxReplay) {
			return failure{}
		}
	}
	return why
}

// unfit reports whether err says that no further attempt can help: a message cannot be sent or
// received, or a picker has dropped the call.
func unfit(err error) bool {
	_, final := errors.AsType[call.Final](err)
	_, send := errors.AsType[*message.SendError](err)
	_, recv := errors.AsType[*message.RecvError](err)
	return final || send || recv
}

// withDetails returns e with the details that its trailer adds to its status.
func withDetails(e *link.End) *link.End {
	if st := statusWith(e.Status, e.Trailer); st != e.Status {
		return &link.End{Status: st, Trailer: e.Trailer} // a copy, because the peer's end must not be modified
	}
	return e
}

// retriesTransparentlyLocked reports whether the call can be retried transparently after the
// current attempt was aborted for reason.
func (s *clientStream) retriesTransparentlyLocked(reason error) bool {
	a := s.current
	if !isUnprocessed(reason) || a.session == nil || s.giveUpReason != nil {
		return false
	}
	return a.kind == firstAttempt && !a.peer.Local || unsent(a.session, reason)
}

// retryableLocked reports whether the call may be retried after the current attempt failed with why.
// Once false, the result stays false.
func (s *clientStream) retryableLocked(why failure) bool {
	switch {
	case s.committed, s.finished, unfit(why.reason):
		return false
	case s.giveUpReason != nil && !s.info.unary(): // a unary call's failure still counts for the throttler
		return false
	case why.end != nil:
		return true // shouldRetry decides
	}
	return s.retriesTransparentlyLocked(why.reason) || s.info.retry.retries(call.LinkStatus(why.reason))
}

// retryAttempt retries the call after the failure of a. It returns nil if there is another
// attempt. Otherwise it commits the call and returns its error.
func (s *clientStream) retryAttempt(a *attempt, why failure) error {
	s.retryMu.Lock(s.waiter)
	s.mu.Lock()
	if s.current != a {
		s.mu.Unlock()
		s.retryMu.Unlock()
		return nil
	}
	var trailer metadata.MD
	if why.end != nil {
		trailer = s.setTrailerLocked(why.end)
	}
	if !s.retryableLocked(why) || s.replayTooLargeLocked() {
		defer s.retryMu.Unlock()
		s.commitLocked()
		reason := s.giveUpReason
		s.mu.Unlock()
		if why.end != nil {
			a.stats.InTrailer(trailer)
		}
		if reason == nil || why.end != nil {
			return why.status()
		}
		return call.LinkStatus(reason)
	}
	ctx, cancel := context.WithCancel(s.info.ctx)
	s.retrying, s.stopRetry = true, cancel
	s.finishFuncs = append(s.finishFuncs, cancel)
	a.ended = true
	a.retryPending = false
	kept, transparent := s.replayBuffer, s.retriesTransparentlyLocked(why.reason)
	s.mu.Unlock()
	finished := false
	defer wait.OnAbandon(s.waiter, abandonedRetry{s, a})()
	defer func() {
		if !finished { // a stats handler panics: others may wait for the retry
			_ = s.finishRetry(a, false, errPanicked)
		}
	}()
	if why.end != nil {
		a.stats.InTrailer(trailer)
	}
	a.reportEnd(why.status(), trailer, why.end != nil)

	waits := ctx
	if s.info.unary() { // only its context and its client end a unary call
		waits = s.info.ctx
	}
	failed := why.status()
	kind, err := s.info.retry.nextAttempt(waits, s.client.closing, transparent, failed, trailer)
	refused := err == failed
	if err == nil {
		err = s.replaceAttempt(ctx, kept, kind)
	}
	finished = true
	return s.finishRetry(a, refused && why.end != nil, err)
}

var errPanicked = status.Error(codes.Internal, "a stats handler panicked while the call was retried")

var errAbandoned = status.Error(codes.Canceled, "the task that retried the call runs on a loop that runs no more")

// An abandonedRetry ends the retry of a stream's attempt if the task that retries is abandoned.
type abandonedRetry struct {
	stream *clientStream
	failed *attempt
}

// Abandoned implements [wait.Abandoned].
func (r abandonedRetry) Abandoned() { _ = r.stream.finishRetry(r.failed, false, errAbandoned) }

// finishRetry is the last step of retryAttempt. Either the attempt a was replaced and err is nil,
// or err is the error of the call. With an error it finishes the call if received is not set. If
// received is set, err is the status that a ended with, and the goroutine that receives finishes
// the call.
func (s *clientStream) finishRetry(a *attempt, received bool, err error) error {
	s.mu.Lock()
	s.retrying, s.stopRetry = false, nil
	b := s.current
	if s.giveUpReason != nil && (err == nil || !s.info.unary()) {
		err, received = s.giveUpReason, false
	}
	if err != nil {
		s.commitLocked()
	}
	lost := b.abortReason
	if b != a && lost != nil {
		if b.retryPending = err == nil && s.retryableLocked(failure{reason: lost}); b.retryPending {
			lost = nil // the next operation on the call retries it
		} else {
			s.commitLocked()
		}
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	s.mu.Unlock()
	s.retryMu.Unlock()
	for _, p := range waiting { // receiveUntil must look at the new attempt
		p.Unpark()
	}
	switch {
	case err != nil:
		err = call.LinkStatus(err)
		if !received {
			s.finish(err)
		}
	case b != a && lost != nil:
		s.finishAborted(lost) // onTransportAbort did not finish it, because retrying was set
	}
	return err
}

// replaceAttempt opens another attempt, makes it the current one, and sends the steps in kept on
// it. Sending may wait for credit, as this attempt's handler may receive less than an earlier one
// did. It ignores errors of the new stream: the next operation on the call gets them.
func (s *clientStream) replaceAttempt(ctx context.Context, kept []step, kind attemptKind) error {
	if s.client.stats != nil { // a stats handler may add to the context's metadata
		ctx = metadata.NewOutgoingContext(ctx, s.info.md) // a copy: the user may have changed the context's
	}
	b := &attempt{kind: kind}
	info := *s.info // a copy: fillHeader may set the codec, which other goroutines read
	if err := s.openAttempt(ctx, b, &info); err != nil {
		return err
	}
	s.mu.Lock()
	s.current, s.trailer = b, nil
	gaveUp := s.giveUpReason
	s.mu.Unlock()
	if !s.info.unary() {
		s.watchStream(b)
	}
	if gaveUp != nil {
		b.stream.Abort(gaveUp)
		return gaveUp
	}
	s.watchContext(b)
	for i := range kept {
		st := &kept[i]
		err := b.stream.Send(&link.Frame{Msg: st.msg, HasMsg: st.hasMsg, EndSend: st.end})
		if unfit, ok := errors.AsType[*message.SendError](err); ok {
			return unfit
		}
		if err != nil {
			return nil
		}
		if st.hasMsg {
			b.stats.Sent(st.value, &st.msg)
		}
	}
	return nil
}

// The rest of this file keeps the sent steps of a call for replay on its next attempt, until the call is
// committed. See attempt.go for the invariants.

// A step is one send, kept for replay.
type step struct {
	msg    message.Message // encoded, or live if the user will not change it
	hasMsg bool
	end    bool // the caller sends no more
	value  any  // the user's message, for stats handlers
}

// commitLocked commits the call to the current attempt.
func (s *clientStream) commitLocked() {
	if !s.committed {
		s.info.committed()
	}
	s.committed, s.replayBuffer = true, nil
}

// commitAndFinish commits the call. If its attempt has failed and a retry was pending,
// the call fails.
func (s *clientStream) commitAndFinish() {
	s.lockUnlessRetrying()
	s.commitLocked()
	a := s.current
	pending := a.retryPending
	a.retryPending = false
	s.mu.Unlock()
	if pending {
		s.finishAborted(a.abortReason)
	}
}

// commitReceivedLocked commits the call because a frame was received from a. It returns false if a was
// or is being replaced: then the frame must be dropped. It needs recvMu.
func (s *clientStream) commitReceivedLocked(a *attempt) bool {
	if s.recvAttempt != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != a || s.retrying {
		return false
	}
	s.commitLocked()
	s.recvAttempt, a.answered = a, true
	return true
}

// transmit sends f on the current attempt. st is the step that repeats f.
func (s *clientStream) transmit(f *link.Frame, st *step) error {
	for {
		a := s.sendAttempt
		if a == nil {
			a, _ = s.currentAttempt()
		}
		err := a.stream.Send(f)
		if err != nil && st.hasMsg {
			another, lost := s.onSendError(a, err)
			if lost != nil {
				return lost
			}
			if another {
				continue
			}
		}
		if err == nil && st.hasMsg {
			a.stats.Sent(st.value, &st.msg)
		}
		if s.bufferForReplay(a, st, err) {
			return err
		}
	}
}

// encodeForReplay encodes m if the user may change it before it is sent again, or its codec could
// not encode it again. The bytes are immutable.
func (s *clientStream) encodeForReplay(m *message.Message) error {
	if s.sendAttempt != nil || s.info.unary() && s.info.codec == codec.Proto() || s.info.codec == codec.Shared() {
		return nil // a request does not change before Invoke returns, and a shared message never changes
	}
	a, replayable := s.currentAttempt()
	if !replayable {
		s.sendAttempt, s.replayMemory = a, replayMemory{}
		return nil
	}
	if s.info.desc.ClientStreams {
		return s.replayMemory.encode(m)
	}
	return call.Encode(m)
}

// bufferForReplay adds st, which was sent on a with the result err, to the replay buffer.
// It returns false if a was or is being replaced: st must be sent again. An EndSend is
// kept even if it could not be sent, because the user does not repeat it.
func (s *clientStream) bufferForReplay(a *attempt, st *step, err error) bool {
	if s.sendAttempt != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != a || s.retrying {
		return false
	}
	if s.committed || err != nil && st.hasMsg {
		return true
	}
	if st.hasMsg && !s.info.unary() {
		n, _ := st.msg.Size() // no error: it could be sent
		if s.replayBufferSize += n + link.MessageOverhead; s.replayBufferSize > s.info.maxReplay {
			s.commitLocked()
			return true
		}
	}
	s.replayBuffer = append(s.replayBuffer, *st)
	return true
}

// replayTooLargeLocked reports whether the request of a unary call exceeds the replay limit,
// which bufferForReplay does not check for unary calls.
func (s *clientStream) replayTooLargeLocked() bool {
	return s.info.unary() && len(s.replayBuffer) > 0 && !fitsReplay(&s.replayBuffer[0].msg, s.info.maxReplay)
}

// fitsReplay reports whether m fits a replay buffer of limit bytes.
func fitsReplay(m *message.Message, limit int) bool {
	n, err := m.Size()
	return err == nil && n+link.MessageOverhead <= limit
}

// A replayMemory has the encoded messages that a client stream keeps for replay, one after the
// other in few pieces of memory. Separately each message would take several pieces.
type replayMemory struct{ last []byte } // the piece that is being filled

const (
	firstReplayPiece = 512
	maxReplayPiece   = 32 << 10

	// roomToEncode is enough to encode small messages without knowing their size.
	roomToEncode = 4 << 10
)

// Encode is like the function encode, but puts small messages into r's memory.
func (r *replayMemory) encode(m *message.Message) error {
	if m.Bound() > 0 {
		return nil // it is encoded
	}
	for range 2 {
		at := len(r.last)
		if b, ok := m.AppendWithin(r.last); ok {
			r.last = b
			*m = message.EncodedBytes(b[at:len(b):len(b)])
			return nil
		}
		if cap(r.last)-at >= roomToEncode {
			break
		}
		r.last = make([]byte, 0, min(max(4*cap(r.last), firstReplayPiece), maxReplayPiece))
	}
	return call.Encode(m)
}

// openAttempt opens a's stream. It retries refusals and failures as the rules allow, and reports
// each retry to stats handlers as another attempt. When it returns, the end of each failed
// attempt was reported as well. The error is a status error.
func (s *clientStream) openAttempt(ctx context.Context, a *attempt, info *callInfo) error {
	for {
		if a.ctx == nil {
			if err := s.client.beginAttempt(ctx, a, info); err != nil {
				return err
			}
		}
		transparent, err := s.tryOpenAttempt(ctx, a, info)
		if err == nil {
			return nil
		}
		_, dropped := errors.AsType[call.Final](err)
		err = call.LinkStatus(err)
		a.reportEnd(err, nil, false)
		if dropped {
			return err
		}
		kind, err := info.retry.nextAttempt(ctx, s.client.closing, transparent, err, nil)
		if err != nil {
			return err
		}
		*a = attempt{kind: kind}
	}
}

// tryOpenAttempt opens a's stream on one session. transparent says that err is a refusal after
// which the call can be retried transparently.
func (s *clientStream) tryOpenAttempt(ctx context.Context, a *attempt, info *callInfo) (transparent bool, err error) {
	c := s.client
	if a.session == nil {
		if err = a.pickSession(c, info); err != nil {
			return false, err
		}
	}
	a.peer = a.session.Peer()
	header := a.header
	a.header = nil
	if header == nil {
		header = new(link.CallHeader)
		if err := c.fillHeader(header, a, info); err != nil {
			return false, err
		}
	}
	var cancel context.CancelFunc
	a.ctx, cancel = a.withTimer(header.Deadline)
	if a.stream, err = link.NewStream(a.ctx, a.session, header); err != nil {
		cancel()
		return unsent(a.session, err), err
	}
	s.onFinish(cancel)
	a.stream = link.StreamFor(wait.WaiterOf(ctx), a.stream)
	a.header = header
	a.reportHeader()
	return false, nil
}

// watchContext aborts the call when the context of a ends.
func (s *clientStream) watchContext(a *attempt) {
	if a.ctx.Done() == nil {
		return
	}
	stop := wait.AfterFunc(a.ctx, func() {
		s.mu.Lock()
		replaced := s.current != a
		s.mu.Unlock()
		if !replaced {
			s.abortCall(link.ContextEnd(wait.DoneErr(a.ctx)))
		}
	})
	s.onFinish(func() { stop() })
}

// currentAttempt returns the current attempt, and whether the call may still be
// retried. It waits for a retry that is in progress.
func (s *clientStream) currentAttempt() (a *attempt, replayable bool) {
	s.lockUnlessRetrying()
	defer s.mu.Unlock()
	return s.current, !s.committed
}

// lockUnlessRetrying locks mu. If a retry is in progress, it first waits for that retry.
func (s *clientStream) lockUnlessRetrying() {
	s.mu.Lock()
	if s.retrying {
		s.mu.Unlock()
		s.retryMu.Lock(s.waiter)
		s.mu.Lock()
		s.retryMu.Unlock()
	}
}

// watchStream calls onTransportAbort when a's stream is aborted.
func (s *clientStream) watchStream(a *attempt) {
	a.stream.OnAbort(func(reason error) { s.onTransportAbort(a, reason) })
}

// onTransportAbort is called when a's stream was aborted, by abortCall or because the session
// ended. It finishes a call that cannot be retried, even if no goroutine receives.
func (s *clientStream) onTransportAbort(a *attempt, reason error) {
	s.mu.Lock()
	a.abortReason = reason
	if s.current == a && !s.retrying {
		a.retryPending = s.retryableLocked(failure{reason: reason})
	}
	over := s.current == a && !s.retrying && !a.retryPending
	if over {
		s.commitLocked() // now: if the session ends before finish, the call would become retryable
	}
	if isUnprocessed(reason) && s.giveUpReason != nil {
		reason = s.giveUpReason
	}
	s.mu.Unlock()
	if over {
		s.finishAborted(reason)
	}
}
