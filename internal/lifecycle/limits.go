package lifecycle

import (
	"time"

	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/options"
)

// LimitsOf returns the limits of a connection with the options c. accepted says that this side has
// accepted the connection.
func LimitsOf(c *options.Connections, accepted bool, patience time.Duration) Limits {
	l := Limits{Accepted: accepted, Idle: max(c.IdleLimit, 0), Patience: patience, Keepalive: Keepalive(c.Pings)}
	if c.AgeLimit > 0 {
		l.Age, l.Grace = durations.Age(c.AgeLimit), c.AgeGrace
	}
	return l
}

// A DrainLimit checks the DRAINs of a peer. Each makes this side look at all its calls, so the peer
// sends at most two: the first announces the drain, and the second names an earlier last call.
type DrainLimit struct {
	Drains int // how many have arrived
	last   uint64
}

// Exceeded records a DRAIN that names the last call, and reports whether it is one too many, or says
// nothing new.
func (d *DrainLimit) Exceeded(last uint64) bool {
	d.Drains++
	old := d.Drains > 1 && last >= d.last
	d.last = last
	return d.Drains > 2 || old
}

const maxStrikes = 2 // gRPC's

// A PingLimit counts the PINGs of a client that come too early, as gRPC's servers do.
type PingLimit struct {
	strikes  int
	lastPing time.Time // when the client last sent a PING
	spoke    bool      // this side has sent a frame of a call since then
}

// Spoke records that this side has sent a frame of a call. The next PING is not too early then.
func (l *PingLimit) Spoke() { l.spoke = true }

// Exceeded records a PING, and reports whether too many have come too early, which is within
// least of the previous PING. idle says that no call is open.
func (l *PingLimit) Exceeded(c *options.Connections, idle bool) (least time.Duration, yes bool) {
	now := time.Now()
	least = c.LeastPing
	if idle {
		least = c.LeastIdlePing
	}
	switch {
	case l.spoke:
		l.strikes = 0
	case now.Sub(l.lastPing) < least:
		l.strikes++
	}
	l.lastPing, l.spoke = now, false
	return least, l.strikes > maxStrikes
}

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
