package call

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// How another attempt takes the place of one that has failed. The invariants
// stand in attempt.go.

// onSendError decides what follows after a message could not be sent with a. It
// makes the call again if no handler has seen it or its policy says so, and
// reports whether there is another attempt to send the message with. The error
// says why a call that no handler has seen is not made again.
func (s *clientStream) onSendError(a *attempt, err error) (another bool, lost error) {
	var unfit *link.SendError
	switch {
	case isUnprocessed(err):
		lost = s.retryAttempt(a, failure{reason: err})
		return lost == nil, lost
	case s.sendAttempt != nil, !s.info.retry.hasPolicy(), errors.As(err, &unfit):
		return false, nil
	}
	// Whether it is retried depends on how the attempt has ended, which is there
	// to be received.
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

// A failure is how an attempt has failed.
type failure struct {
	reason error     // why the stream was aborted
	end    *link.End // or else what the peer ended it with, and nothing before
}

// status returns what the call returns unless it is made again.
func (f failure) status() error {
	if f.end != nil {
		return f.end.Status.Err()
	}
	return linkStatus(f.reason)
}

// failureOf returns how an attempt has failed from which f and err were
// received, if it has failed so that the call might be made again.
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

// retriesTransparently reports whether the call can be made again without its user
// learning of it, after the current attempt was aborted for reason. mu is held.
func (s *clientStream) retriesTransparently(reason error) bool {
	a := s.current
	return isUnprocessed(reason) && (a.kind == firstAttempt || refusedBy(a.openedBy, reason)) && s.giveUpReason == nil
}

// retryable reports whether the call can be made again after the current
// attempt has failed. Once it is false it stays so. mu is held.
func (s *clientStream) retryable(why failure) bool {
	switch {
	case s.committed, s.finished:
		return false
	case s.giveUpReason != nil && s.desc != unaryDesc: // of which the policy is told, which may count it
		return false
	case why.end != nil:
		return true // the policy says
	}
	return s.retriesTransparently(why.reason) || s.info.retry.retries(linkStatus(why.reason))
}

// retryAttempt makes the call again after a has failed. It returns nil when there is
// another attempt, and otherwise the error of the call, which is committed then.
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
	a.stats.end(why.status(), trailer)

	kind := transparentRetry
	failed := why.status()
	var err error
	if !transparent {
		kind = policyRetry
		waits := ctx
		if s.desc == unaryDesc { // which nobody ends but its context and its client
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

// finishRetry ends what again does: a was replaced, or there is no other attempt and
// err is the error of the call. That is over then, unless received is set: err is
// what a has ended with, of which a receiver is to learn.
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
			lost = nil // whoever uses the call next makes it again
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
	for _, p := range waiting { // to look at another attempt
		p.Unpark()
	}
	switch {
	case err != nil:
		err = linkStatus(err)
		if !received {
			s.finish(err)
		}
	case b != a && lost != nil:
		s.finishAborted(lost) // which nobody could take in at the time
	}
	return err
}

// replayTooLarge reports whether the request of a unary call, which is kept without
// being encoded, is over the limit. mu is held.
func (s *clientStream) replayTooLarge() bool {
	return s.desc == unaryDesc && len(s.replayBuffer) > 0 && !fitsReplay(&s.replayBuffer[0].msg, s.info.maxReplay)
}

// replaceAttempt makes another attempt the current one, and sends kept with it. That
// may wait for credit: the handler of an attempt before may have taken more than
// this one does. An error of the new attempt's stream is none here: it is found by
// whoever uses it next.
func (s *clientStream) replaceAttempt(ctx context.Context, kept []step, kind attemptKind) error {
	if s.client.stats != nil { // which may add to the metadata
		ctx = metadata.NewOutgoingContext(ctx, s.md) // the context's own is the user's
	}
	b := &attempt{call: s, kind: kind}
	info := *s.info // whose codec others use meanwhile
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
