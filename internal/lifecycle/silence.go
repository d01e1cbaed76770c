package lifecycle

import "time"

// A Silence decides when a peer that sends nothing counts as lost, for a transport that learns only
// now and then how many packets have arrived. Because the process may have been suspended, only the
// time counts that passes between two checks.
type Silence struct {
	Probe time.Duration // how long the peer may be silent before this side sends a packet; 0 for no packets
	Limit time.Duration // how long the peer may be silent before it counts as lost

	next     time.Duration // the time until the next check
	received uint64        // packets that have arrived
	silent   time.Duration // a lower bound of the time without packets
	probed   time.Duration // the value of silent when a packet was sent; 0 if none was
}

// Every returns the longest time between two checks. The field silent lags behind the true time by
// less than that.
func (w *Silence) Every() time.Duration {
	if w.Probe > 0 {
		return w.Probe / 4
	}
	return w.Limit / 12
}

// Check is called first at the beginning, and then after the time next. received is how many packets
// have arrived so far. probe says that a packet must be sent now, which the peer answers. The peer
// is lost if next is not positive.
func (w *Silence) Check(received uint64) (next time.Duration, probe bool) {
	every := w.Every()
	left := w.Limit - every
	if received != w.received {
		w.received, w.silent, w.probed = received, 0, 0
	} else {
		w.silent += w.next
		if probe = w.Probe > 0 && w.probed == 0 && w.silent >= w.Probe-every; probe {
			w.probed = w.silent
		}
	}
	if w.probed > 0 {
		left = w.probed + w.Limit - w.Probe
	}
	w.next = min(every, left-w.silent)
	return w.next, probe
}
