package mux

import (
	"errors"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// How the calls of the peer reach their handlers.

// A newCall is a call of the peer that was not offered to the acceptor yet.
//
// It is offered once all input that was read is handled, and before a PONG in that input. So a call that was opened and reset in one
// read reaches no handler: its caller spends a few bytes on it, but a handler takes a goroutine.
type newCall struct {
	st   *stream
	open *link.CallHeader
}

// offerNewCalls offers the new calls to the acceptor, except those that have ended.
func (s *Session) offerNewCalls() {
	for i, c := range s.reading.newCalls {
		s.reading.newCalls[i] = newCall{}
		s.mu.Lock()
		wanted := c.st.reason == nil
		if wanted {
			s.reading.accepting = c.st
			s.inline.allowed = s.inlineTimeLocked(c.st)
		}
		s.mu.Unlock()
		if wanted {
			s.offerToAcceptor(c.st, c.open)
		}
	}
	s.reading.newCalls = s.reading.newCalls[:0]
}

// errNoCalls is the error of calls to a side without an acceptor.
var errNoCalls error = link.Unprocessed{Err: errors.New("the other side takes no calls")}

// offerToAcceptor offers a call to the acceptor. If the acceptor refuses it, the peer gets a
// RESET. If the session ends in the meantime, terminate leaves this call to offerToAcceptor,
// because only HandleStream's result tells whether a handler sees it. offerToAcceptor then aborts
// the call without a RESET: BYE tells the peer.
func (s *Session) offerToAcceptor(st *stream, o *link.CallHeader) {
	err := errNoCalls
	if s.acceptor != nil {
		err = s.acceptor.HandleStream(st, o)
	}
	refused := err != nil
	var after callbacks
	s.mu.Lock()
	s.reading.accepting = nil
	if !refused {
		err = s.life.Reason()
	}
	if err != nil {
		st.abortLocked(err, refused, &after)
		s.flushLocked(false)
	}
	s.mu.Unlock()
	after.run()
	st.Free()
}

// inlineHandlers is the state with which the read loop runs handlers itself. Waking a worker for
// each call takes longer than most handlers run. But while a handler runs inline, no goroutine
// reads. So the read loop runs only handlers that are known to be quick, only after it has handled
// all that it has read, and only if no goroutine waits for the peer. It writes the replies of
// several handlers together.
//
// Invariants, under mu:
//   - running is set while roles.Reader is waits.Handler. The read loop runs that call's handler,
//     and has handled all that it has read.
//   - A goroutine that is about to wait for the peer, or to end the session, first starts another
//     read loop. This includes the goroutine of the handler. Release does the same for a slow
//     handler. The new read loop starts a goroutine for each of the remaining calls: their handlers
//     may be as slow, and the timer of package call watches only handlers that have begun.
//   - A goroutine whose handler has returned reads on only if its call is still running. Otherwise
//     the goroutine ends.
type inlineHandlers struct {
	// Owned by the read loop.
	allowed  time.Duration // how long the handler of the call that is being offered may take
	calls    []inlineCall  // calls to run once all input was handled
	next     int           // index of the next call to run
	expected time.Duration // how long the handlers of calls are likely to take
	spent    time.Duration // how long the handlers that have run took

	// Guarded by mu.
	running *stream // the call whose handler the read loop runs; nil while it reads
}

// An inlineCall is a call whose handler runs on the read loop.
type inlineCall struct {
	st  *stream
	run link.Runner
}

const (
	// maxInline is how long handlers may keep the read loop. Waking a goroutine can take as long.
	maxInline = 250 * time.Microsecond

	// maxInlineAmongMany is how long one handler may keep the read loop while other calls are open.
	// Handlers that take longer run on several processors rather than one after another.
	maxInlineAmongMany = 20 * time.Microsecond

	// maxBatched is how many replies are held back and written together. If more were held back,
	// the peer would have nothing to do meanwhile.
	maxBatched = 32

	// maxInlineAmong is the number of open calls up to which handlers run inline. More calls keep
	// all processors busy anyway.
	maxInlineAmong = 128
)

func (st *stream) MayRunInline(d time.Duration) bool { return d <= st.session.inline.allowed }

func (st *stream) RunInline(r link.Runner, d time.Duration) {
	s := st.session
	st.holders.Add(1)
	s.inline.allowed = -1
	s.inline.expected += d
	s.inline.calls = append(s.inline.calls, inlineCall{st, r})
}

func (st *stream) Release() {
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inline.running == st {
		s.doLocked(s.roles.NeedReader())
	}
}

// inlineTimeLocked returns how long the handler of st, a new call, may run inline.
func (s *Session) inlineTimeLocked(st *stream) time.Duration {
	switch {
	case !st.in.Closed || st.in.MidMessage() || s.roles.Waiting > 0 || s.calls > maxInlineAmong:
		return -1
	case s.calls == 1:
		return maxInline
	}
	return min(maxInlineAmongMany, maxInline-s.inline.expected)
}

// runInlineLocked runs the handlers of s.inline.calls. It reports whether the calling goroutine is
// still the read loop. mu is released in between.
func (s *Session) runInlineLocked() (reads bool) {
	for ran := 0; s.inline.next < len(s.inline.calls); {
		c := s.inline.calls[s.inline.next]
		s.inline.calls[s.inline.next] = inlineCall{}
		s.inline.next++
		if s.inline.spent > maxInline || !s.roles.MayRunHandler() {
			go c.run.Run()
			c.st.Free()
			continue
		}
		s.roles.RunHandler(s.inline.next < len(s.inline.calls))
		s.inline.running = c.st
		s.mu.Unlock()
		spent := s.runOne(c)
		s.mu.Lock()
		ours := s.inline.running == c.st
		c.st.Free()
		if !ours {
			return false
		}
		s.inline.running = nil
		s.roles.Returned()
		s.inline.spent += spent
		if ran++; ran%maxBatched == 0 {
			s.writeRepliesLocked()
		}
	}
	s.inline.calls, s.inline.next, s.inline.expected, s.inline.spent = s.inline.calls[:0], 0, 0, 0
	s.writeRepliesLocked()
	return true
}

// writeRepliesLocked stops holding back replies, and writes them. mu is released in between.
func (s *Session) writeRepliesLocked() {
	s.roles.BatchReplies = false
	s.flushLocked(false)
}

// runOne runs the handler of c, and returns how long that took. Called without mu.
func (s *Session) runOne(c inlineCall) time.Duration {
	returned := false
	defer func() {
		if !returned { // the handler called Goexit
			c.st.Release()
		}
	}()
	d := c.run.Run()
	returned = true
	return d
}
