package nearcall

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// idleness makes a connection idle that makes no calls: see [WithIdleTimeout].
// Calls only count; what follows from it is seen to by a timer, which runs while
// the connector is not idle.
type idleness struct {
	after time.Duration

	// calls has the number of calls that run in its low 32 bits, and of those
	// that ever began, which wraps, above them.
	calls atomic.Uint64

	// Guarded by the connector's mu.
	timer *time.Timer
	seen  uint64    // calls, when the timer fired last
	since time.Time // no call ran since then, as far as the timer knows
}

const oneCall = 1<<32 | 1

func (i *idleness) begin() { i.calls.Add(oneCall) }
func (i *idleness) end()   { i.calls.Add(^uint64(0)) }

// stream counts a stream: until it ends, or cannot be started.
func (i *idleness) stream(opts []grpc.CallOption, start func([]grpc.CallOption) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	i.begin()
	var over atomic.Bool // an interceptor may start several, or none
	end := func(error) {
		if !over.Swap(true) {
			i.end()
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

// look takes in how many calls there were, and returns for how long there
// were none.
func (i *idleness) look(now time.Time) time.Duration {
	if calls := i.calls.Load(); calls != i.seen || running(calls) > 0 {
		i.seen, i.since = calls, now
	}
	return now.Sub(i.since)
}

// wait is the time from one look to the next. Looks are few, so that calls need
// not say when they end.
func (i *idleness) wait(quiet time.Duration) time.Duration { return min(i.after-quiet, (i.after+3)/4) }

// idleAfter has the connector become idle when there were no calls for d. It is
// called before the connector is used.
func (c *connector) idleAfter(d time.Duration) {
	if d > 0 {
		c.idle = &idleness{after: d}
	}
}

// watch begins to look for calls. mu is held and the state is no longer Idle.
func (c *connector) watch() {
	i := c.idle
	if i == nil {
		return
	}
	i.seen, i.since = i.calls.Load(), time.Now()
	if i.timer == nil {
		i.timer = time.AfterFunc(i.wait(0), c.checkIdle)
	} else {
		i.timer.Reset(i.wait(0))
	}
}

// checkIdle makes the connector idle if there were no calls for long enough.
func (c *connector) checkIdle() {
	for _, s := range c.enterIdle() {
		_ = s.Close(errIdle)
	}
}

// enterIdle gives up the session, or the attempts to get one, if there were no
// calls for long enough. It returns what is to be closed.
func (c *connector) enterIdle() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.look()
	if c.state == connectivity.Shutdown || c.state == connectivity.Idle && len(c.draining) == 0 {
		return nil
	}
	i := c.idle
	if quiet := i.look(time.Now()); quiet < i.after {
		i.timer.Reset(i.wait(quiet))
		return nil
	}
	if s := c.ready.Load(); s != nil {
		// A call that has just begun finds the session drained and looks for
		// another, or is on it already and may end.
		s.Drain()
		c.retire(s)
	}
	if c.dialing != nil {
		c.dialing()
		c.dialing = nil
	}
	c.pace = pace{}
	c.setState(connectivity.Idle)
	if running(i.calls.Load()) > 0 {
		i.timer.Reset(i.wait(0))
		return nil
	}
	unused := c.draining
	c.draining = nil
	return unused
}
