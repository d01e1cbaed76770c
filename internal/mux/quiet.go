package mux

// quiet is how many calls are open for which nothing comes: streams that wait for an
// event, say. Readers do not count them among those that they read for.
//
// Guarded by the session's mu.
type quiet struct {
	reads uint64 // with something in them
	at    uint64 // when the calls were counted last
	calls int    // that were quiet then
}

// isQuietAfter is for how many reads nothing has come for a call that is quiet, and
// how often quiet calls are counted: it is at least as many as there are calls, so
// that counting costs each read no more than a call.
func isQuietAfter(calls int) uint64 { return max(256, uint64(calls)) }

// active returns how many calls are open that are not quiet. mu is held.
func (s *Session) active() int {
	n := len(s.streams)
	if n <= fewCalls {
		return n
	}
	q, after := &s.quiet, isQuietAfter(n)
	if q.reads-q.at >= after {
		q.at, q.calls = q.reads, 0
		for st := s.live.first; st != nil; st = st.nextLive {
			if st.id != 0 && q.reads-st.heard >= after {
				q.calls++
			}
		}
	}
	return max(n-q.calls, 0)
}
