package call

import (
	"context"
	"errors"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// gRPC's transparent retry: a call that no handler has seen is made again, and
// its user does not learn of it.
//
// Where a session that ends refuses to open the call, or aborts the stream as
// unprocessed, that goes on for as long as there are other sessions: a server
// that lets its connections end one after the other loses no call. By a session
// that goes on a stream is made again once, on the first attempt only, as in
// grpc-go. It is made again unless it is committed. What was sent is kept until
// then, and is sent again.
//
// Invariants:
//
//   - A call is committed as soon as anything was received, what was sent is
//     more than the limit, somebody has asked for the context or the trailer,
//     or the call is finished. It stays so, and its attempt is not replaced.
//   - Whoever replaces the attempt holds retryMu and has set retrying. It is
//     the only one to write cur, and to finish the call for as long as it is at
//     it; others that want to finish it leave the reason in gaveUp.
//   - What is kept is exactly what the user has sent: an operation counts if its
//     attempt is still the current one, and not about to be replaced, when it
//     has succeeded. Otherwise it is done again on the next attempt.
//   - A call that may be made again is so by whoever uses it next. Until then
//     it waits, as in grpc-go, for its context to end or its client to close.
//   - Calls in process are committed from the beginning: there Open itself
//     refuses. Nothing is kept.

// An attempt is one stream that a call was made with.
type attempt struct {
	call    *clientStream
	again   bool            // another attempt came before
	ctx     context.Context // as stats handlers have tagged it
	stats   *callStats
	session link.Session // to be asked first; nil once it was, or where there is none
	peer    *link.Peer
	stream  link.Stream
	on      link.Session // that opened stream

	// Guarded by call.mu.
	stop    func() bool // stops watching ctx
	reason  error       // why it was aborted
	pending bool        // it was, and the call waits to be made again
	ended   bool        // stats handlers know of its end
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
const defaultReplay = 256 << 10

// unseen reports whether err says that no handler has seen the call.
func unseen(err error) bool { return err != nil && errors.Is(err, link.ErrUnprocessed) }

// refusedBy reports whether session has refused a call that another one may
// take. A session that goes on to take calls would be asked forever.
func refusedBy(session link.Session, err error) bool {
	return unseen(err) && link.IsClosed(session.Done())
}

// open has a opened by a session, with o unless that is nil. Each session that
// refuses it counts as an attempt, of which stats handlers are told, with ctx.
func (s *clientStream) open(ctx context.Context, a *attempt, info *callInfo, md metadata.MD, o *link.Open) error {
	c := s.client
	for {
		var err error
		session := a.session
		if a.session = nil; session == nil {
			if session, err = c.cfg.Sessions.Session(a.ctx, info.waitForReady); err != nil {
				return err
			}
		}
		a.peer = session.Peer()
		if o == nil {
			o = new(link.Open)
			if err := c.open(a.ctx, o, info, s.method, md, a.peer); err != nil {
				return err
			}
		}
		var cancel context.CancelFunc
		if a.peer.Local {
			a.ctx, cancel = withTimer(a.ctx, o)
		}
		a.stream, err = session.Open(a.ctx, o)
		if cancel != nil && err != nil {
			cancel()
		} else if cancel != nil {
			s.onFinish(cancel)
		}
		if err == nil {
			if w := wait.WaiterOf(ctx); w != nil {
				a.stream.SetWaiter(w)
			}
			a.on = session
			a.stats.outHeader(o, a.peer)
			return nil
		}
		if !refusedBy(session, err) {
			return err
		}
		a.stats.end(linkStatus(err), nil)
		a.again, o = true, nil
		if a.ctx, a.stats, md, err = c.beginAttempt(ctx, s.method, info, s.desc, md, true); err != nil {
			return err
		}
	}
}

// watch aborts the call when the context of a ends.
func (s *clientStream) watch(a *attempt) {
	if a.ctx.Done() == nil {
		return
	}
	stop := wait.AfterFunc(a.ctx, func() { s.abort(link.ContextEnd(wait.DoneErr(a.ctx))) })
	s.mu.Lock()
	over := s.finished || s.cur != a
	if !over {
		a.stop = stop
	}
	s.mu.Unlock()
	if over {
		stop()
	}
}

// attempt returns the current attempt, after another goroutine that makes the
// call again, and whether the call may still be made again.
func (s *clientStream) attempt() (a *attempt, replayable bool) {
	s.lockSettled()
	defer s.mu.Unlock()
	return s.cur, !s.committed
}

// lockSettled locks mu while nobody makes the call again.
func (s *clientStream) lockSettled() {
	s.mu.Lock()
	if s.retrying {
		s.mu.Unlock()
		s.retryMu.Lock(s.waiter)
		s.mu.Lock()
		s.retryMu.Unlock()
	}
}

// commit keeps the current attempt. mu is held.
func (s *clientStream) commit() { s.committed, s.kept, s.room = true, nil, [1]step{} }

// settle commits the call. If it waited to be made again it is over now.
func (s *clientStream) settle() {
	s.lockSettled()
	s.commit()
	a := s.cur
	pending := a.pending
	a.pending = false
	s.mu.Unlock()
	if pending {
		s.lost(a.reason)
	}
}

// taken takes in that something was received with a. It reports false where
// that does not count, because the call is made again. recvMu is held.
func (s *clientStream) taken(a *attempt) bool {
	if s.from != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != a || s.retrying {
		return false
	}
	s.commit()
	s.from = a
	return true
}

// keep takes in what came of sending st with a. It reports false where that does
// not count, because the call is made again. The end of sending is kept also
// where it could not be sent: nobody sends it again.
func (s *clientStream) keep(a *attempt, st *step, err error) bool {
	if s.to != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != a || s.retrying {
		return false
	}
	if s.committed || err != nil && st.hasMsg {
		return true
	}
	if st.hasMsg && s.desc != unaryDesc {
		if s.keptSize += st.msg.Bound() + link.MessageOverhead; s.keptSize > s.info.maxReplay {
			s.commit()
			return true
		}
	}
	s.kept = append(s.kept, *st)
	return true
}

// transmit sends f, which st has as well, with the current attempt.
func (s *clientStream) transmit(f *link.Frame, st *step) error {
	for {
		a := s.to
		if a == nil {
			a, _ = s.attempt()
		}
		err := a.stream.Send(f)
		if st.hasMsg && unseen(err) {
			if err := s.again(a, err); err != nil {
				return err
			}
			continue
		}
		if err == nil && st.hasMsg {
			a.stats.sent(st.value, s.info.codec)
		}
		if s.keep(a, st, err) {
			return err
		}
	}
}

// retryable reports whether the call can be made again after the current
// attempt was aborted for reason. Once it is false it stays so. mu is held.
func (s *clientStream) retryable(reason error) bool {
	a := s.cur
	return unseen(reason) && (!a.again || refusedBy(a.on, reason)) && !s.committed && !s.finished && s.gaveUp == nil
}

// again makes the call again after an operation on a has failed with reason. It
// returns nil when there is another attempt for it, and otherwise its error.
func (s *clientStream) again(a *attempt, reason error) error {
	s.retryMu.Lock(s.waiter)
	s.mu.Lock()
	if s.cur != a || !s.retryable(reason) || s.tooLarge() {
		defer s.retryMu.Unlock()
		defer s.mu.Unlock()
		if s.cur != a {
			return nil
		}
		s.commit()
		if s.gaveUp != nil {
			reason = s.gaveUp
		}
		return linkStatus(reason)
	}
	ctx, cancel := context.WithCancel(s.base)
	s.retrying, s.stopRetry = true, cancel
	s.atEnd = append(s.atEnd, cancel)
	a.ended = true
	kept, stop := s.kept, a.stop
	a.stop = nil
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	a.stats.end(linkStatus(reason), nil)

	err := s.replace(ctx, kept)

	s.mu.Lock()
	s.retrying, s.stopRetry = false, nil
	b := s.cur
	if s.gaveUp != nil {
		err = s.gaveUp
	}
	lost := b.reason
	if b != a && lost != nil {
		if b.pending = err == nil && s.retryable(lost); b.pending {
			lost = nil // whoever uses the call next makes it again
		} else {
			s.commit()
		}
	}
	s.mu.Unlock()
	s.retryMu.Unlock()
	switch {
	case err != nil:
		err = linkStatus(err)
		s.finish(err)
	case b != a && lost != nil:
		s.lost(lost) // which nobody could take in at the time
	}
	return err
}

// tooLarge reports whether the request of a unary call, which is kept without
// being encoded, is over the limit. mu is held.
func (s *clientStream) tooLarge() bool {
	if s.desc != unaryDesc || len(s.kept) == 0 {
		return false
	}
	n, err := s.kept[0].msg.Size()
	return err != nil || n+link.MessageOverhead > s.info.maxReplay
}

// replace makes another attempt the current one, and sends kept with it. That
// waits for credit only where the new session gives less: what no handler has
// seen was sent without any coming back. An error of the new attempt's stream is
// none here: it is found by whoever uses it next.
func (s *clientStream) replace(ctx context.Context, kept []step) error {
	if s.client.stats != nil { // which may add to the metadata
		ctx = metadata.NewOutgoingContext(ctx, s.md) // the context's own is the user's
	}
	b := &attempt{call: s, again: true}
	info := *s.info // whose codec others use meanwhile
	md := s.md
	var err error
	if b.ctx, b.stats, md, err = s.client.beginAttempt(ctx, s.method, &info, s.desc, md, true); err != nil {
		return err
	}
	if err := s.open(ctx, b, &info, md, nil); err != nil {
		b.stats.end(linkStatus(err), nil)
		return err
	}
	s.mu.Lock()
	s.cur = b
	gaveUp := s.gaveUp
	s.mu.Unlock()
	if s.desc != unaryDesc {
		b.stream.OnAbort(b.aborted)
	}
	if gaveUp != nil {
		b.stream.Abort(gaveUp)
		return gaveUp
	}
	s.watch(b)
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

// abort ends the call for reason, from outside: its context has ended, or its
// client was closed.
func (s *clientStream) abort(reason error) {
	s.mu.Lock()
	if s.finished {
		s.mu.Unlock()
		return
	}
	if s.gaveUp == nil {
		s.gaveUp = reason
	}
	reason = s.gaveUp
	a, unheard := s.cur, s.cur.pending || s.retrying
	s.mu.Unlock()
	a.stream.Abort(reason)
	if unheard { // the stream was aborted before
		s.finish(linkStatus(reason))
	}
}

// aborted learns that a was aborted: by the context, or because the session
// ended. The call is over, also when nobody receives, unless it can be made
// again.
func (a *attempt) aborted(reason error) {
	s := a.call
	s.mu.Lock()
	a.reason = reason
	if s.cur == a && !s.retrying {
		a.pending = s.retryable(reason)
	}
	over := s.cur == a && !s.retrying && !a.pending
	if over {
		s.commit() // also where the session ends before the call is finished
	}
	if unseen(reason) && s.gaveUp != nil {
		reason = s.gaveUp
	}
	s.mu.Unlock()
	if over {
		s.lost(reason)
	}
}

// lost ends the call, whose stream was aborted for reason. A header that had
// arrived is still taken in.
func (s *clientStream) lost(reason error) {
	if s.recvMu.TryLock() {
		s.mu.Lock()
		known := s.headerIn
		s.mu.Unlock()
		if !known && s.end == nil && s.recvErr == nil {
			_, _ = s.take(link.Sink{}) // does not wait: the stream is aborted
		}
		s.recvMu.Unlock()
	}
	s.finish(linkStatus(reason))
}
