package mux

import (
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// lending is the state with which the read loop runs handlers itself. Waking a worker for each call takes longer than most handlers run. But while the
// read loop runs handlers, no goroutine reads. So the read loop lends itself only to handlers that
// are known to be quick, only after it has handled all that it has read, and only if no goroutine
// waits for the peer. It writes the replies of several handlers together.
//
// Invariants, under mu:
//   - borrower is set while roles.Reader is waits.Handler. The read loop runs the handler of
//     that call, and has handled all that it has read.
//   - Before a goroutine waits for the peer or ends the session, it starts another read loop in place
//     of the one that runs the handler. The goroutine of the handler itself does so, too. Release
//     does the same for a handler that turns out to be slow. The new read loop starts goroutines
//     for the calls that are left in lent: their handlers may be as slow, and nobody watches a
//     call that has not begun.
//   - A goroutine whose handler has returned reads on only if its call is still the
//     borrower. Otherwise it ends.
type lending struct {
	// Owned by the read loop.
	onlyInput bool          // no input follows the frame that is being handled
	lendable  time.Duration // how long the handler of the call that is being offered may take
	lent      []lentCall    // calls to run once all input was handled
	lentRun   int           // how many calls of lent have run, or were left to other goroutines
	lentTime  time.Duration // how long the handlers of lent are likely to take
	lentSpent time.Duration // how long the handlers that have run took

	// Guarded by mu.
	borrower *stream // the call whose handler the read loop runs; nil while it reads
}

// A lentCall is a call that the read loop has lent itself to.
type lentCall struct {
	st  *stream
	run link.Runner
}

const (
	// maxLent is how long handlers may keep the read loop. Waking a goroutine can take as long.
	maxLent = 250 * time.Microsecond

	// maxLentAmongMany is how long one handler may keep the read loop while other calls are open.
	// Handlers that take longer run on several processors rather than one after another.
	maxLentAmongMany = 20 * time.Microsecond

	// maxCorked is how many replies are held back and written together. If more were held back,
	// the peer would have nothing to do meanwhile.
	maxCorked = 32

	// maxAmong is the number of open calls up to which the read loop lends itself. More calls than
	// that keep all processors busy anyway.
	maxAmong = 128
)

// Lends implements [link.Lender].
func (st *stream) Lends(d time.Duration) bool { return d <= st.session.lending.lendable }

// Lend implements [link.Lender].
func (st *stream) Lend(r link.Runner, d time.Duration) {
	s := st.session
	st.holders.Add(1)
	s.lending.lendable = -1
	s.lending.lentTime += d
	s.lending.lent = append(s.lending.lent, lentCall{st, r})
}

// Release implements [link.Lender].
func (st *stream) Release() {
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lending.borrower == st {
		s.do(s.roles.NeedReader())
	}
}

// lendableTo returns for how long the read loop could lend itself to st, a call that was just
// opened. mu is held.
func (s *Session) lendableTo(st *stream) time.Duration {
	switch {
	case !st.in.Closed || st.in.MidMessage() || s.roles.Waiting > 0 || s.calls > maxAmong:
		return -1
	case s.lending.onlyInput && s.calls == 1:
		return maxLent
	}
	return min(maxLentAmongMany, maxLent-s.lending.lentTime)
}

// runLent runs the handlers of the calls that the read loop has lent itself to. It reports
// whether the calling goroutine is still the read loop. Called with mu held, which it
// releases if it returns false.
func (s *Session) runLent() (reads bool) {
	for ran := 0; s.lending.lentRun < len(s.lending.lent); {
		c := s.lending.lent[s.lending.lentRun]
		s.lending.lent[s.lending.lentRun] = lentCall{}
		s.lending.lentRun++
		if s.lending.lentSpent > maxLent || !s.roles.MayLend() {
			go c.run.Run()
			c.st.drop()
			continue
		}
		s.roles.Lend(s.lending.lentRun < len(s.lending.lent))
		s.lending.borrower = c.st
		s.mu.Unlock()
		spent := s.runOne(c)
		s.mu.Lock()
		ours := s.lending.borrower == c.st
		c.st.drop()
		if !ours {
			s.mu.Unlock()
			return false
		}
		s.lending.borrower = nil
		s.roles.Returned()
		s.lending.lentSpent += spent
		if ran++; ran%maxCorked == 0 {
			s.uncork()
		}
	}
	s.lending.lent, s.lending.lentRun, s.lending.lentTime, s.lending.lentSpent = s.lending.lent[:0], 0, 0, 0
	s.uncork()
	return true
}

// uncork stops holding back replies, and writes what is queued. Called with mu held; mu is
// released in between.
func (s *Session) uncork() {
	s.roles.Corked = false
	s.flushQueued()
}

// runOne runs the handler of c, and returns how long that took. Called without mu.
func (s *Session) runOne(c lentCall) time.Duration {
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

// replaceReadLoop makes a new goroutine the read loop, in place of the one that runs the
// borrower's handler. mu is held.
func (s *Session) replaceReadLoop() {
	s.lending.borrower = nil
	s.lending.lentSpent = maxLent + 1
	go s.readOn(nil)
}
