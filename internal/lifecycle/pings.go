package lifecycle

import "time"

// Keepalive says when a side sends PINGs, to learn that its peer has ended.
type Keepalive struct {
	Every        time.Duration // after this time without anything from the peer; 0 for no PINGs
	Timeout      time.Duration // how long the peer may take to answer
	WithoutCalls bool          // also without open calls
}

// pinging tracks whether the peer is alive.
type pinging struct {
	heard       bool          // data has arrived since the timer was set
	heardAt     time.Time     // when it last arrived
	pingSent    bool          // a PING was sent, and nothing has arrived since
	pingSentAt  time.Time     // when the last PING was sent, for whatever reason
	timeoutLeft time.Duration // the rest of the timeout when the timer fires
	dormant     bool          // PINGs are paused, or sent more rarely, until a call opens

	between     time.Duration // what the peer allows at most: a PING in this time,
	betweenIdle time.Duration // or in this one while no call is open
}

// Hears says that data of the peer has arrived.
func (l *Life) Hears(now time.Time) { l.pinging.heard, l.pinging.heardAt = true, now }

// PeerAllows sets the times that the peer demands between two PINGs: while calls are open, and
// otherwise.
func (l *Life) PeerAllows(between, betweenIdle time.Duration) {
	l.pinging.between, l.pinging.betweenIdle = between, betweenIdle
}

// firePing sends a PING, or reports the peer as dead if it has not answered the last one in time.
func (l *Life) firePing(now time.Time) Task {
	k := &l.pinging
	switch {
	case k.heard:
		k.heard, k.pingSent = false, false
		l.due[pingTimer] = k.heardAt.Add(l.Keepalive.Every)
	case k.pingSent && k.timeoutLeft <= 0:
		return Lost
	case !l.Keepalive.WithoutCalls && l.calls == 0:
		k.pingSent, k.dormant = false, true
	case k.pingSent:
		l.awaitAnswer(now)
	default:
		return l.pingWhenAllowed(now)
	}
	return 0
}

// pingWhenAllowed sends a PING, or sets the timer to when the peer allows the next one. It adds a
// tenth to the peer's time between PINGs, because the network may delay one PING and not the next.
func (l *Life) pingWhenAllowed(now time.Time) Task {
	k := &l.pinging
	between := k.between
	if l.calls == 0 {
		between = k.betweenIdle
	}
	if due := k.pingSentAt.Add(between + between/10); now.Before(due) && !k.pingSentAt.IsZero() {
		k.dormant = l.calls == 0 // the minimum may be shorter once a call opens
		l.due[pingTimer] = due
		return SetTimer
	}
	k.pingSent, k.heard, k.dormant = true, false, false
	k.pingSentAt, k.timeoutLeft = now, l.Keepalive.Timeout
	l.awaitAnswer(now)
	return Ping | SetTimer
}

// awaitAnswer sets the timer for the next check whether the PING was answered. As in gRPC, the side
// checks at least once per time between PINGs.
func (l *Life) awaitAnswer(now time.Time) {
	k := &l.pinging
	d := min(l.Keepalive.Every, k.timeoutLeft)
	k.timeoutLeft -= d
	l.due[pingTimer] = now.Add(d)
}
