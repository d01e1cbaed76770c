package connector

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// Idleness finds out when a connection has made no calls for a while. A call counts
// itself with one atomic addition at either end; a timer, which runs while the
// connector is not idle, compares the counts now and then.
type Idleness struct {
	timeout time.Duration

	// calls has the number of calls that run in its low 32 bits, and of those
	// that ever began, which wraps, above them.
	calls atomic.Uint64

	// Guarded by the connector's mu.
	timer *time.Timer
	seen  uint64    // calls, when the timer fired last
	since time.Time // as far as the timer knows no call has run since then
}

const oneCall = 1<<32 | 1

// Begin counts a call that begins.
func (i *Idleness) Begin() { i.calls.Add(oneCall) }

// End counts a call that ends.
func (i *Idleness) End() { i.calls.Add(^uint64(0)) }

// Stream starts a stream and counts it until it ends, or cannot be started.
func (i *Idleness) Stream(opts []grpc.CallOption, start func([]grpc.CallOption) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
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

// running is the number of calls that run.
func running(calls uint64) uint32 { return uint32(calls) }

// quietFor returns for how long there were no calls.
func (i *Idleness) quietFor(now time.Time) time.Duration {
	if calls := i.calls.Load(); calls != i.seen || running(calls) > 0 {
		i.seen, i.since = calls, now
	}
	return now.Sub(i.since)
}

// nextCheck is the time to the timer's next check. Four checks in a timeout are enough
// for calls not to need the time at which they end.
func (i *Idleness) nextCheck(quiet time.Duration) time.Duration {
	return min(i.timeout-quiet, (i.timeout+3)/4)
}

// IdleAfter makes the connector idle when there were no calls for d. A d of 0 does
// nothing. It must be called before the connector is used.
func (c *Connector) IdleAfter(d time.Duration) {
	if d > 0 {
		c.Idle = &Idleness{timeout: d}
	}
}

// startIdleTimer starts the checks for calls. mu is held and the state is no longer
// Idle.
func (c *Connector) startIdleTimer() {
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

// checkIdle makes the connector idle if there were no calls for long enough.
func (c *Connector) checkIdle() {
	for _, s := range c.enterIdle() {
		_ = s.Close(errIdle)
	}
}

// enterIdle gives up the session, or the attempts to get one, if there were no calls
// for long enough. It returns the sessions to close.
func (c *Connector) enterIdle() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noticeEnd()
	if c.state == connectivity.Shutdown || c.state == connectivity.Idle && len(c.draining) == 0 {
		return nil
	}
	i := c.Idle
	if quiet := i.quietFor(time.Now()); quiet < i.timeout {
		i.timer.Reset(i.nextCheck(quiet))
		return nil
	}
	if s := c.ready.Load(); s != nil {
		// A call that has just begun finds the session drained and looks for
		// another, or is on it already and may end.
		s.Drain()
		c.retire(s)
	}
	if c.stopDial != nil {
		c.stopDial()
		c.stopDial = nil
	}
	c.pace = pace{}
	c.setState(connectivity.Idle)
	if running(i.calls.Load()) > 0 {
		i.timer.Reset(i.nextCheck(0))
		return nil
	}
	unused := c.draining
	c.draining = nil
	return unused
}
