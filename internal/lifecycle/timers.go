package lifecycle

import (
	"errors"
	"time"
)

// ErrIdle, ErrOld and ErrDead are why the timers end a connection.
var (
	ErrIdle = errors.New("the connection was idle for MaxConnectionIdle")
	ErrOld  = errors.New("the connection reached MaxConnectionAge")
	ErrDead = errors.New("keepalive: the peer did not answer a ping in time")
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
			return l.Retire(ErrIdle)
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
