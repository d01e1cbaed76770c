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
