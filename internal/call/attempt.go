package call

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// How a call is made again. There are two reasons for it:
//
// The transparent retry: no handler has seen the call, and its user does not
// learn of it. Where a session that ends refuses to open the call, or aborts the
// stream as unprocessed, that goes on for as long as there are other sessions: a
// server that lets its connections end one after the other loses no call. By a
// session that goes on a stream is made again once, on the first attempt only, as
// in grpc-go.
//
// The retry by policy: the attempt has failed without a header, and the service
// config has a retryPolicy that wants another. See retry.go.
//
// Invariants:
//
//   - A call is committed as soon as a header or a message was received, it has
//     ended and is not retried, what was sent is more than the limit, somebody
//     has asked for the context or the trailer, or the call is finished. It
//     stays so, and its attempt is not replaced.
//   - Whoever replaces the attempt holds retryMu and has set retrying, also while
//     it waits for the backoff. It is the only one to write cur, and to finish
//     the call for as long as it is at it; others that want to finish it leave
//     the reason in gaveUp.
//   - The trailer is the current attempt's, and stays until another attempt was
//     opened.
//   - What is kept is exactly what the user has sent: an operation counts if its
//     attempt is still the current one, and not about to be replaced, when it
//     has succeeded. Otherwise it is done again on the next attempt.
//   - A call that may be made again is so by whoever uses it next. Until then
//     it waits, as in grpc-go, for its context to end or its client to close.
//   - Calls in process without a retryPolicy are committed from the beginning:
//     there Open itself refuses. Nothing is kept.

// An attemptKind says why an attempt is made.
type attemptKind uint8

const (
	firstAttempt attemptKind = iota
	transparentRetry
	policyRetry
)

// An attempt is one stream that a call was made with.
type attempt struct {
	call     *clientStream
	kind     attemptKind
	ctx      context.Context // as stats handlers have tagged it
	stats    *callStats
	session  link.Session // to be asked first; nil once it was, or where there is none
	peer     *link.Peer
	stream   link.Stream
	openedBy link.Session // that opened stream

	// Guarded by call.mu.
	stopWatch    func() bool // stops watching ctx
	abortReason  error       // why it was aborted
	retryPending bool        // it was, and the call waits to be made again
	ended        bool        // stats handlers know of its end
}

// A step is something that was sent.
type step struct {
	msg    link.Message // encoded, or live where the user will not change it
	hasMsg bool
	end    bool // of sending
	value  any  // what msg was made of, for stats handlers
}

// defaultReplay is how much is kept of a call by default, in bytes, as in
// grpc-go.
const defaultMaxReplay = 256 << 10

// isUnprocessed reports whether err says that no handler has seen the call.
func isUnprocessed(err error) bool { return err != nil && errors.Is(err, link.ErrUnprocessed) }

// refusedBy reports whether session has refused a call that another one may
// take. A session that goes on to take calls would be asked forever.
func refusedBy(session link.Session, err error) bool {
	return isUnprocessed(err) && link.IsClosed(session.Done())
}

// beginAttempt tells the client's stats handler that an attempt at a call begins; kind
// says why. It returns ctx as the handler has tagged it, and md with what the handler has
// added. The stats are nil without a handler, and if there is an error, which the handler
// then knows of.
func (c *Client) beginAttempt(ctx context.Context, method string, ci *callInfo, desc *grpc.StreamDesc, md metadata.MD, kind attemptKind) (context.Context, *callStats, metadata.MD, error) {
	if kind != firstAttempt {
		if err := wait.Err(ctx); err != nil {
			return ctx, nil, nil, startStatus(err)
		}
	}
	h := c.stats
	if h == nil {
		return ctx, nil, md, nil
	}
	s := &callStats{handler: h, client: true, begin: time.Now()}
	s.ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method, FailFast: !ci.waitForReady})
	s.report(&stats.Begin{
		Client:         true,
		BeginTime:      s.begin,
		FailFast:       !ci.waitForReady,
		IsClientStream: desc.ClientStreams,
		IsServerStream: desc.ServerStreams,

		IsTransparentRetryAttempt: kind == transparentRetry,
	})
	md, err := outgoing(s.ctx)
	if err != nil {
		s.end(err, nil)
		return s.ctx, nil, nil, err
	}
	return s.ctx, s, md, nil
}

// openAttempt opens a with a session, and with o unless that is nil. Each session that
// refuses it, and each failure that is retried, counts as an attempt, of which
// stats handlers are told, with ctx. They know of the end of an attempt that
// could not be opened. The error is a status error.
func (s *clientStream) openAttempt(ctx context.Context, a *attempt, info *callInfo, md metadata.MD, o *link.CallHeader) error {
	for {
		transparent, err := s.tryOpenAttempt(ctx, a, info, md, o)
		if err == nil {
			return nil
		}
		err = linkStatus(err)
		a.stats.end(err, nil)
		a.kind, o = transparentRetry, nil
		if !transparent {
			a.kind = policyRetry
			if err := s.client.waitForRetry(ctx, info.retry, err, nil); err != nil {
				return err
			}
		}
		if a.ctx, a.stats, md, err = s.client.beginAttempt(ctx, s.method, info, s.desc, md, a.kind); err != nil {
			return err
		}
	}
}

// tryOpenAttempt asks one session to open a. With an error it says whether that is a
// refusal which the user does not learn of.
func (s *clientStream) tryOpenAttempt(ctx context.Context, a *attempt, info *callInfo, md metadata.MD, o *link.CallHeader) (transparent bool, err error) {
	c, session := s.client, a.session
	if a.session = nil; session == nil {
		if session, err = c.cfg.Sessions.Pick(a.ctx, info.waitForReady); err != nil {
			return false, err
		}
	}
	a.peer = session.Peer()
	if o == nil {
		o = new(link.CallHeader)
		if err := c.fillHeader(a.ctx, o, info, s.method, md, a.peer); err != nil {
			return false, err
		}
	}
	var cancel context.CancelFunc
	if a.peer.Local && !o.Deadline.IsZero() {
		a.ctx, cancel = withTimer(a.ctx, o.Deadline)
	}
	if a.stream, err = session.NewStream(a.ctx, o); err != nil {
		if cancel != nil {
			cancel()
		}
		return refusedBy(session, err), err
	}
	if cancel != nil {
		s.onFinish(cancel)
	}
	if w := wait.WaiterOf(ctx); w != nil {
		a.stream.SetWaiter(w)
	}
	a.openedBy = session
	a.stats.outHeader(o, a.peer)
	return false, nil
}

// watchContext aborts the call when the context of a ends.
func (s *clientStream) watchContext(a *attempt) {
	if a.ctx.Done() == nil {
		return
	}
	stop := wait.AfterFunc(a.ctx, func() { s.abortCall(link.ContextEnd(wait.DoneErr(a.ctx))) })
	s.mu.Lock()
	over := s.finished || s.current != a
	if !over {
		a.stopWatch = stop
	}
	s.mu.Unlock()
	if over {
		stop()
	}
}

// currentAttempt returns the current attempt, after another goroutine that makes the
// call again, and whether the call may still be made again.
func (s *clientStream) currentAttempt() (a *attempt, replayable bool) {
	s.lockUnlessRetrying()
	defer s.mu.Unlock()
	return s.current, !s.committed
}

// lockUnlessRetrying locks mu while nobody makes the call again.
func (s *clientStream) lockUnlessRetrying() {
	s.mu.Lock()
	if s.retrying {
		s.mu.Unlock()
		s.retryMu.Lock(s.waiter)
		s.mu.Lock()
		s.retryMu.Unlock()
	}
}

// commitAttempt keeps the current attempt. mu is held.
func (s *clientStream) commitAttempt() {
	s.committed, s.replayBuffer, s.replayBufferRoom = true, nil, [1]step{}
}

// commitAndFinish commits the call. If it waited to be made again it is over now.
func (s *clientStream) commitAndFinish() {
	s.lockUnlessRetrying()
	s.commitAttempt()
	a := s.current
	pending := a.retryPending
	a.retryPending = false
	s.mu.Unlock()
	if pending {
		s.finishAborted(a.abortReason)
	}
}

// commitReceived takes in that something was received with a. It reports false where
// that does not count, because the call is made again. recvMu is held.
func (s *clientStream) commitReceived(a *attempt) bool {
	if s.recvAttempt != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != a || s.retrying {
		return false
	}
	s.commitAttempt()
	s.recvAttempt = a
	return true
}

// bufferForReplay takes in what came of sending st with a. It reports false where that does
// not count, because the call is made again. The end of sending is kept also
// where it could not be sent: nobody sends it again.
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
	if st.hasMsg && s.desc != unaryDesc {
		n, _ := st.msg.Size() // it was sent, and so has one
		if s.replayBufferSize += n + link.MessageOverhead; s.replayBufferSize > s.info.maxReplay {
			s.commitAttempt()
			return true
		}
	}
	s.replayBuffer = append(s.replayBuffer, *st)
	return true
}

// transmit sends f, which st has as well, with the current attempt.
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
			a.stats.sent(st.value, s.info.codec)
		}
		if s.bufferForReplay(a, st, err) {
			return err
		}
	}
}

// abortCall ends the call for reason, from outside: its context has ended, or its
// client was closed.
func (s *clientStream) abortCall(reason error) {
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return
	}
	if s.giveUpReason == nil {
		s.giveUpReason = reason
	}
	reason = s.giveUpReason
	a, unheard := s.current, s.current.retryPending || s.retrying
	s.mu.Unlock()
	a.stream.Abort(reason)
	if unheard { // the stream was aborted before
		s.finish(linkStatus(reason))
	}
}

// onTransportAbort learns that a was aborted: by the context, or because the session
// ended. The call is over, also when nobody receives, unless it can be made
// again.
func (a *attempt) onTransportAbort(reason error) {
	s := a.call
	s.mu.Lock()
	a.abortReason = reason
	if s.current == a && !s.retrying {
		a.retryPending = s.retryable(failure{reason: reason})
	}
	over := s.current == a && !s.retrying && !a.retryPending
	if over {
		s.commitAttempt() // also where the session ends before the call is finished
	}
	if isUnprocessed(reason) && s.giveUpReason != nil {
		reason = s.giveUpReason
	}
	s.mu.Unlock()
	if over {
		s.finishAborted(reason)
	}
}

// finishAborted ends the call, whose stream was aborted for reason. A header that had
// arrived is still taken in.
func (s *clientStream) finishAborted(reason error) {
	if s.recvMu.TryLock() {
		s.mu.Lock()
		known := s.headerKnown
		s.mu.Unlock()
		if !known && s.end == nil && s.recvErr == nil {
			_, _ = s.receiveFrame(link.Sink{}) // does not wait: the stream is aborted
		}
		s.recvMu.Unlock()
	}
	s.finish(linkStatus(reason))
}
