package mux

import "github.com/nearcall/nearcall/internal/link"

// lending lets the resident run the handler of a call. To wake a worker for it costs more
// than most handlers take. While the handler runs no goroutine reads, so the resident lends
// itself only to a handler that is known to be quick, whose request is all that was read,
// and only if no other call is open and no goroutine waits for the peer.
//
// Invariants, under mu:
//   - While borrower is set, occupied is set, and the resident runs the handler of that
//     call. It has handled and flushed all that it has read.
//   - A goroutine that is about to wait for the peer, be it the handler's own, or that ends
//     the session calls needReader first, which starts another resident in place of the
//     one that runs the handler. Release does the same for a handler that turns out to be
//     slow.
//   - A goroutine whose handler has returned reads on only if its call is still the
//     borrower. Otherwise it ends.
type lending struct {
	// Owned by the reading goroutine.
	onlyInput bool        // no input follows the frame that is being handled
	lendable  bool        // the conditions held when the call was opened that is being offered
	lent      *stream     // the call that the resident has lent itself to, until it runs
	runner    link.Runner // runs lent's handler

	// Guarded by mu.
	borrower *stream // the call whose handler the resident runs; nil while it reads
}

// Lends implements [link.Lender].
func (st *stream) Lends(quick bool) bool { return quick && st.session.lendable }

// Lend implements [link.Lender].
func (st *stream) Lend(r link.Runner) {
	s := st.session
	s.lendable, s.lent, s.runner = false, st, r
}

// Release implements [link.Lender].
func (st *stream) Release() {
	s := st.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.borrower == st {
		s.replaceResident()
	}
}

// mayLend reports whether the resident could lend itself to st, a call that was just opened
// and whose request has arrived. mu is held.
func (s *Session) mayLend(st *stream) bool {
	return s.onlyInput && st.in.closed && !st.in.midMessage() && s.calls == 1 && s.waiting == 0
}

// runLent runs the handler of the call that the resident has lent itself to. It reports
// whether the calling goroutine is still the resident. Called with mu held, which it
// releases if it returns false.
func (s *Session) runLent() (reads bool) {
	st, r := s.lent, s.runner
	s.lent, s.runner = nil, nil
	if s.waiting > 0 || s.ended != nil || s.broken != nil {
		go r.Run()
		return true
	}
	s.borrower = st
	s.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // the handler called Goexit
			st.Release()
		}
	}()
	r.Run()
	returned = true
	s.mu.Lock()
	if s.borrower != st {
		s.mu.Unlock()
		return false
	}
	s.borrower = nil
	return true
}

// needReader makes sure that a goroutine reads or was woken to read. mu is held.
func (s *Session) needReader() {
	switch {
	case s.borrower != nil:
		s.replaceResident()
	case !s.occupied:
		s.wakeResident()
	}
}

// replaceResident makes a new goroutine the resident, in place of the one that runs the
// borrower's handler. mu is held.
func (s *Session) replaceResident() {
	s.borrower = nil
	go s.readOn(nil)
}
