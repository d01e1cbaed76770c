package connector

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/nearcall/nearcall/internal/durations"
)

// Idleness detects that a connection has made no calls for a while. Each call costs one
// atomic addition at its start and one at its end. A timer, which runs while the
// connector is not idle, compares the counts.
type Idleness struct {
	timeout time.Duration

	// calls holds the number of running calls in its low 32 bits, and the number
	// of calls ever begun, which wraps around, in its high 32 bits.
	calls atomic.Uint64

	// Guarded by the connector's mu.
	timer *time.Timer
	seen  uint64    // the field calls at the last check
	since time.Time // the last check that saw a call
}

const oneCall = 1<<32 | 1

// Begin counts the start of a call. A nil *Idleness counts nothing.
func (i *Idleness) Begin() {
	if i != nil {
		i.calls.Add(oneCall)
	}
}

// End counts the end of a call.
func (i *Idleness) End() {
	if i != nil {
		i.calls.Add(^uint64(0))
	}
}

// Stream starts a stream and counts it as a call until it ends or start fails.
func (i *Idleness) Stream(opts []grpc.CallOption, start func([]grpc.CallOption) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	if i == nil {
		return start(opts)
	}
	i.Begin()
	var ended atomic.Bool // an interceptor may start several streams, or none
	end := func(error) {
		if !ended.Swap(true) {
			i.End()
		}
	}
	s, err := start(append(opts[:len(opts):len(opts)], grpc.OnFinish(end)))
	if err != nil {
		end(err)
	}
	return s, err
}

// running returns the number of running calls.
func running(calls uint64) uint32 { return uint32(calls) }

// idleForLocked returns how long there have been no calls, as far as the checks have seen.
func (i *Idleness) idleForLocked(now time.Time) time.Duration {
	if i.Active() {
		i.since = now
	}
	return now.Sub(i.since)
}

// Active reports whether calls run, or have begun since Active was last called.
func (i *Idleness) Active() bool {
	calls := i.calls.Load()
	active := calls != i.seen || running(calls) > 0
	i.seen = calls
	return active
}

// nextCheck returns the time until the next check: at most a quarter of the timeout.
// The checks find out roughly when the last call ended, so that calls need not read the
// clock.
func (i *Idleness) nextCheck(idle time.Duration) time.Duration {
	return durations.Recheck(min(i.timeout-idle, i.timeout/4))
}

// NewIdleness returns an Idleness that makes a connector idle after d without calls. If d is not
// positive, it returns nil, and the connector never becomes idle.
func NewIdleness(d time.Duration) *Idleness {
	if d <= 0 {
		return nil
	}
	return &Idleness{timeout: d}
}

// startIdleTimerLocked starts the checks. mu is held and the state is no longer Idle.
func (c *Connector) startIdleTimerLocked() {
	i := c.Idle
	if i == nil {
		return
	}
	i.seen, i.since = i.calls.Load(), time.Now()
	if i.timer == nil {
		i.timer = time.AfterFunc(i.nextCheck(0), c.checkIdle)
	} else {
		i.timer.Reset(i.nextCheck(0))
	}
}

// checkIdle makes the connector idle if there were no calls for the timeout.
func (c *Connector) checkIdle() {
	s, idle := c.enterIdle()
	if s != nil {
		// A call may have begun after the call of idleForLocked. If that call finds the session drained,
		// it picks another session. If it already runs on this one, it can finish.
		s.Retire() // without mu: the end of a session in process is reported to the server's stats handler
	}
	if idle {
		for _, s := range c.takeUnused() {
			_ = s.Close(errIdle)
		}
	}
}

// enterIdle makes the connector idle if there were no calls for the timeout. It returns the session to
// retire, if there is one.
func (c *Connector) enterIdle() (s *session, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEndLocked()
	if c.state == connectivity.Shutdown || c.state == connectivity.Idle && len(c.draining) == 0 {
		return nil, false
	}
	i := c.Idle
	if idle := i.idleForLocked(time.Now()); idle < i.timeout {
		i.timer.Reset(i.nextCheck(idle))
		return nil, false
	}
	if s = c.ready.Load(); s != nil {
		c.retireLocked(s)
	}
	if c.stopDial != nil {
		c.stopDial()
		c.stopDial = nil
	}
	c.redial, c.connected = redial{}, false
	c.setStateLocked(connectivity.Idle)
	return s, true
}

// takeUnused returns the retired sessions, to be closed. While calls run, it returns none, because the
// calls may use them, and another check follows.
func (c *Connector) takeUnused() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connectivity.Shutdown {
		return nil
	}
	if i := c.Idle; running(i.calls.Load()) > 0 {
		i.timer.Reset(i.nextCheck(0))
		return nil
	}
	unused := c.draining
	c.draining = nil
	return unused
}
