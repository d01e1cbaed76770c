package lifecycle

import (
	"time"
)

// leastRecheck is the shortest time between two looks whether a connection is idle, because users may
// choose a tiny MaxConnectionIdle.
const leastRecheck = time.Millisecond

// set makes a timer fire after d, or never if d is 0.
func (l *Life) set(timer int, now time.Time, d time.Duration) {
	l.due[timer] = time.Time{}
	if d != 0 {
		l.due[timer] = now.Add(d)
	}
}

// Next returns when Fire must be called, or the zero time if it need not be.
func (l *Life) Next() (next time.Time) {
	for _, at := range l.due {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// Fire does what is due at this time. serving says that calls of the peer are open.
func (l *Life) Fire(serving bool) (do Task) {
	now := l.Clock.Now()
	for timer := range l.due {
		if at := l.due[timer]; !at.IsZero() && !at.After(now) {
			l.due[timer] = time.Time{}
			do |= l.fire(timer, now, serving)
		}
	}
	return do | SetTimer
}

func (l *Life) fire(timer int, now time.Time, serving bool) Task {
	switch timer {
	case drainTimer:
		if serving && now.Sub(l.announcedAt) < MaxDraining {
			l.set(drainTimer, now, l.Patience)
			return 0
		}
		return l.refusePeer() | l.settle()
	case idleTimer:
		left := l.Idle
		if l.calls == 0 {
			left -= now.Sub(l.idleSince)
		}
		if left <= 0 {
			return l.retire(ErrIdle)
		}
		l.set(idleTimer, now, max(left, leastRecheck))
	case ageTimer:
		l.set(graceTimer, now, l.Grace)
		if l.OneWay && l.drain == Accepting {
			l.drain, l.leaving = Announced, ErrOld // until an answer says so: another call may be on its way
			return 0
		}
		return l.announce() | l.leave(ErrOld) // and not Retire: running handlers may still make calls
	case graceTimer:
		return Expire
	case closeTimer:
		return l.close()
	case pingTimer:
		return l.firePing(now)
	}
	return 0
}

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

// A Timer is the timer of a Life. Its methods need the session's lock.
type Timer struct {
	timer *time.Timer
	at    time.Time
}

// Set makes the timer call fire at the given time, or never if that is zero. fire is the same function
// each time.
func (t *Timer) Set(at time.Time, fire func()) {
	switch {
	case at.IsZero():
		t.Stop()
	case t.timer == nil:
		t.timer = time.AfterFunc(time.Until(at), fire)
	case at != t.at:
		t.timer.Reset(time.Until(at))
	}
	t.at = at
}

// Stop stops the timer. It reports whether the timer would have fired.
func (t *Timer) Stop() bool {
	t.at = time.Time{}
	return t.timer != nil && t.timer.Stop()
}

// Fired says that the timer has fired.
func (t *Timer) Fired() { t.at = time.Time{} }

// System is the system's clock.
type System struct{}

// Now implements [Clock].
func (System) Now() time.Time { return time.Now() }
