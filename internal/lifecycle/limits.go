package lifecycle

import (
	"cmp"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/durations"
)

const (
	minPingTime = 10 * time.Second // the minimum for a client, as in gRPC
	pingTimeout = 20 * time.Second // gRPC's default
	serverPings = 2 * time.Hour    // gRPC's default
	minBetween  = 5 * time.Minute  // gRPC's default
	idlePings   = 2 * time.Hour    // between PINGs of a client without calls, if the server permits no more
	maxStrikes  = 2                // gRPC's
)

// ServerLimits returns the limits of a server's connection.
func ServerLimits(k *keepalive.ServerParameters, patience time.Duration) Limits {
	l := Limits{Accepted: true, Idle: max(k.MaxConnectionIdle, 0), Patience: patience, Pings: Pings{
		Every: max(cmp.Or(k.Time, serverPings), time.Second), Timeout: cmp.Or(k.Timeout, pingTimeout), Always: true, // at least a second, as in gRPC
	}}
	if k.MaxConnectionAge > 0 {
		l.Age, l.Grace = durations.Age(k.MaxConnectionAge), k.MaxConnectionAgeGrace
	}
	return l
}

// ClientLimits returns the limits of a client's connection.
func ClientLimits(k *keepalive.ClientParameters, patience time.Duration) Limits {
	l := Limits{Patience: patience, Pings: Pings{Timeout: cmp.Or(k.Timeout, pingTimeout), Always: k.PermitWithoutStream}}
	if k.Time > 0 {
		l.Pings.Every = max(k.Time, minPingTime)
	}
	return l
}

// MinPings returns the minimum time between a client's PINGs that a server enforces. idle says that no
// call is open.
func MinPings(policy *keepalive.EnforcementPolicy, idle bool) time.Duration {
	if idle && !policy.PermitWithoutStream {
		return idlePings
	}
	return cmp.Or(policy.MinTime, minBetween)
}

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
func (l *PingLimit) Exceeded(policy *keepalive.EnforcementPolicy, idle bool) (least time.Duration, yes bool) {
	now := time.Now()
	least = MinPings(policy, idle)
	switch {
	case l.spoke:
		l.strikes = 0
	case now.Sub(l.lastPing) < least:
		l.strikes++
	}
	l.lastPing, l.spoke = now, false
	return least, l.strikes > maxStrikes
}
