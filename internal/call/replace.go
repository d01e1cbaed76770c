package call

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// This file replaces a failed attempt with another. See attempt.go for the invariants.

// onSendError handles a failure to send a message on a. It retries the call if no
// handler has seen it or its policy says so, and reports whether there is another attempt
// to send the message on. lost is the error of a call that no handler has seen and that
// is not retried.
func (s *clientStream) onSendError(a *attempt, err error) (another bool, lost error) {
	var unfit *link.SendError
	switch {
	case isUnprocessed(err):
		lost = s.retryAttempt(a, failure{reason: err})
		return lost == nil, lost
	case s.sendAttempt != nil, !s.info.retry.hasPolicy(), errors.As(err, &unfit):
		return false, nil
	}
	// The policy depends on how the attempt ended. Receive that.
	s.receiveUntil(func() bool { return s.current != a || s.committed }, func() {
		if s.recvAttempt != nil || s.end != nil || s.recvErr != nil {
			return
		}
		if _, done, err := s.receiveFrom(a, link.Sink{}); done && err != nil && s.end == nil {
			s.finish(err) // the stream was aborted
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != a, nil
}

// A failure says how an attempt failed. One field is set.
type failure struct {
	reason error     // the stream was aborted
	end    *link.End // the peer ended the call without a header or message before
}

// status returns the error of the call if it is not retried.
func (f failure) status() error {
	if f.end != nil {
		return f.end.Status.Err()
	}
	return linkStatus(f.reason)
}

// failureOf returns the failure of an attempt whose Recv returned f and err. ok is false
// if the attempt has not failed, or in a way that is never retried.
func (s *clientStream) failureOf(f *link.Frame, err error) (failure, bool) {
	switch {
	case isUnprocessed(err):
		return failure{reason: err}, true
	case s.recvAttempt != nil, !s.info.retry.hasPolicy():
	case err != nil:
		var unfit *link.RecvError
		return failure{reason: err}, !errors.As(err, &unfit)
	case f.End != nil && f.End.Status != nil && f.Header == nil && !f.Got:
		return failure{end: f.End}, true
	}
	return failure{}, false
}

// retriesTransparently reports whether the call can be retried transparently after the
// current attempt was aborted for reason. mu is held.
func (s *clientStream) retriesTransparently(reason error) bool {
	a := s.current
	return isUnprocessed(reason) && (a.kind == firstAttempt || refusedBy(a.openedBy, reason)) && s.giveUpReason == nil
}

// retryable reports whether the call may be retried after the current attempt failed
// with why. Once it is false, it stays false. mu is held.
func (s *clientStream) retryable(why failure) bool {
	switch {
	case s.committed, s.finished:
		return false
	case s.giveUpReason != nil && s.desc != unaryDesc: // a unary call's failure still counts for the throttler
		return false
	case why.end != nil:
		return true // shouldRetry decides
	}
	return s.retriesTransparently(why.reason) || s.info.retry.retries(linkStatus(why.reason))
}

// retryAttempt retries the call after a failed. It returns nil if there is another
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
		trailer = s.setTrailer(why.end)
	}
	if !s.retryable(why) || s.replayTooLarge() {
		defer s.retryMu.Unlock()
		s.commitAttempt()
		reason := s.giveUpReason
		s.mu.Unlock()
		if why.end != nil {
			a.stats.inTrailer(trailer)
		}
		if reason == nil || why.end != nil {
			return why.status()
		}
		return linkStatus(reason)
	}
	ctx, cancel := context.WithCancel(s.base)
	s.retrying, s.stopRetry = true, cancel
	s.finishFuncs = append(s.finishFuncs, cancel)
	a.ended = true
	a.retryPending = false
	kept, transparent := s.replayBuffer, s.retriesTransparently(why.reason)
	s.mu.Unlock()
	if why.end != nil {
		a.stats.inTrailer(trailer)
	}
	a.stats.reportEnd(why.status(), trailer)

	kind := transparentRetry
	failed := why.status()
	var err error
	if !transparent {
		kind = policyRetry
		waits := ctx
		if s.desc == unaryDesc { // only its context and its client end a unary call
			waits = s.base
		}
		err = s.client.waitForRetry(waits, s.info.retry, failed, trailer)
	}
	refused := err == failed
	if err == nil {
		err = s.replaceAttempt(ctx, kept, kind)
	}
	return s.finishRetry(a, refused && why.end != nil, err)
}

// finishRetry is the end of retryAttempt: a was replaced, or err is the error of the
// call. In the second case it finishes the call, unless received is set: then err is the
// status that a ended with, and the receiver finishes the call.
func (s *clientStream) finishRetry(a *attempt, received bool, err error) error {
	s.mu.Lock()
	s.retrying, s.stopRetry = false, nil
	b := s.current
	if s.giveUpReason != nil && (err == nil || s.desc != unaryDesc) {
		err, received = s.giveUpReason, false
	}
	if err != nil {
		s.commitAttempt()
	}
	lost := b.abortReason
	if b != a && lost != nil {
		if b.retryPending = err == nil && s.retryable(failure{reason: lost}); b.retryPending {
			lost = nil // the next operation on the call retries it
		} else {
			s.commitAttempt()
		}
	}
	var stop func() bool
	if b != a {
		stop, a.stopWatch = a.stopWatch, nil
	}
	waiting := s.headerWaiters
	s.headerWaiters = nil
	s.mu.Unlock()
	s.retryMu.Unlock()
	if stop != nil {
		stop()
	}
	for _, p := range waiting { // receiveUntil must look at the new attempt
		p.Unpark()
	}
	switch {
	case err != nil:
		err = linkStatus(err)
		if !received {
			s.finish(err)
		}
	case b != a && lost != nil:
		s.finishAborted(lost) // onTransportAbort did not, because of retrying
	}
	return err
}

// replayTooLarge reports whether the request of a unary call exceeds the replay limit,
// which bufferForReplay does not check for unary calls. mu is held.
func (s *clientStream) replayTooLarge() bool {
	return s.desc == unaryDesc && len(s.replayBuffer) > 0 && !fitsReplay(&s.replayBuffer[0].msg, s.info.maxReplay)
}

// replaceAttempt opens another attempt, makes it the current one, and sends kept on it.
// Sending may wait for credit, as this attempt's handler may receive less than an earlier
// one did. It ignores errors of the new stream: the next operation on the call gets them.
func (s *clientStream) replaceAttempt(ctx context.Context, kept []step, kind attemptKind) error {
	if s.client.stats != nil { // the handler may add to the context's metadata
		ctx = metadata.NewOutgoingContext(ctx, s.md) // a copy: the user may have changed the context's
	}
	b := &attempt{call: s, kind: kind}
	info := *s.info // a copy: fillHeader may set the codec, which other goroutines read
	md := s.md
	var err error
	if b.ctx, b.stats, md, err = s.client.beginAttempt(ctx, s.method, &info, s.desc, md, kind); err != nil {
		return err
	}
	if err := s.openAttempt(ctx, b, &info, md, nil); err != nil {
		return err
	}
	s.mu.Lock()
	s.current, s.trailer = b, nil
	gaveUp := s.giveUpReason
	s.mu.Unlock()
	if s.desc != unaryDesc {
		b.stream.OnAbort(b.onTransportAbort)
	}
	if gaveUp != nil {
		b.stream.Abort(gaveUp)
		return gaveUp
	}
	s.watchContext(b)
	for i := range kept {
		st := &kept[i]
		err := b.stream.Send(&link.Frame{Msg: st.msg, HasMsg: st.hasMsg, EndSend: st.end})
		var unfit *link.SendError
		if errors.As(err, &unfit) {
			return unfit
		}
		if err != nil {
			return nil
		}
		if st.hasMsg {
			b.stats.resent(st)
		}
	}
	return nil
}
