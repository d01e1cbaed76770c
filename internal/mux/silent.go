package mux

// silentCalls counts the open calls that have received nothing for a long time, such as streams
// that wait for an event. Readers leave them out when they decide whether to spin.
//
// Guarded by the session's mu.
type silentCalls struct {
	reads uint64 // reads that returned data
	at    uint64 // the value of reads at the last count
	calls int    // silent calls at the last count
}

// silentAfter returns how many reads without data make a call silent. The session counts silent
// calls once in so many reads. They are at least as many as the calls, so the share of each read
// is one call at most.
func silentAfter(calls int) uint64 { return max(256, uint64(calls)) }

// active returns the number of open calls that are not silent. mu is held.
func (s *Session) active() int {
	n := len(s.streams)
	if n <= fewCalls {
		return n
	}
	q, after := &s.silent, silentAfter(n)
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
