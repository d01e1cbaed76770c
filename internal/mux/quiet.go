package mux

// quiet counts open calls that receive nothing for a long time, such as streams that
// wait for an event. Readers leave them out when they decide whether to spin.
//
// Guarded by the session's mu.
type quiet struct {
	reads uint64 // reads that returned data
	at    uint64 // the value of reads at the last count
	calls int    // quiet calls at the last count
}

// isQuietAfter returns after how many reads without data for it a call is quiet, and
// how often quiet calls are counted. It is at least the number of calls, so that
// counting costs each read no more than one call's share.
func isQuietAfter(calls int) uint64 { return max(256, uint64(calls)) }

// active returns the number of open calls that are not quiet. mu is held.
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
