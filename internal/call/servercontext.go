package call

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
)

// callContext is the context of a handler, made in one piece with its call. It
// builds what users look up when they look it up.
//
// It ends when the handler has returned, when the call is aborted, and when
// the caller's context ends. The last is noticed by whoever waits for the
// call, in process or across a wire; where the caller itself runs the handler
// nobody waits, and the context looks at the caller's when it is asked.
type callContext struct {
	caller   context.Context // of a caller that runs the handler; nil otherwise
	deadline time.Time

	mu         sync.Mutex
	err        error
	done       chan struct{} // made when somebody asks
	afters     []*after
	timer      *time.Timer
	stopCaller func() bool
	incoming   metadata.MD // made when somebody asks
}

// An after is a function to call when the context ends.
type after struct{ f func() }

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Deadline implements [context.Context].
func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Done implements [context.Context].
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		if c.err != nil {
			c.done = closedChan
		} else {
			c.done = make(chan struct{})
			c.watchCaller()
		}
	}
	return c.done
}

// watchCaller ends the context with that of the caller. mu is held.
func (c *callContext) watchCaller() {
	if c.caller != nil && c.stopCaller == nil && c.err == nil && c.caller.Done() != nil {
		caller := c.caller
		c.stopCaller = context.AfterFunc(caller, func() { c.cancel(contextError(caller.Err())) })
	}
}

// Err implements [context.Context].
func (c *callContext) Err() error {
	c.mu.Lock()
	err, caller := c.err, c.caller
	c.mu.Unlock()
	if err == nil && caller != nil {
		if e := caller.Err(); e != nil {
			c.cancel(contextError(e))
			return contextError(e)
		}
	}
	return err
}

// AfterFunc lets package context derive contexts without a goroutine each. It
// arranges for f to be called when the context ends, on another goroutine when
// it has ended already: package context calls AfterFunc under the very lock
// that f takes.
func (c *callContext) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		go f()
		return func() bool { return false }
	}
	a := &after{f}
	c.afters = append(c.afters, a)
	c.watchCaller()
	c.mu.Unlock()
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range c.afters {
			if c.afters[i] == a {
				last := len(c.afters) - 1
				c.afters[i] = c.afters[last]
				c.afters[last] = nil
				c.afters = c.afters[:last]
				return true
			}
		}
		return false
	}
}

// startTimer ends the context at its deadline, where no caller in this process
// does.
func (c *callContext) startTimer() {
	if c.deadline.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.timer = time.AfterFunc(time.Until(c.deadline), func() { c.cancel(context.DeadlineExceeded) })
	}
}

// cancel ends the context with err, one of context's own. The first call wins.
func (c *callContext) cancel(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	afters, stop, timer := c.afters, c.stopCaller, c.timer
	c.afters, c.stopCaller, c.timer, c.caller = nil, nil, nil, nil
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
	if timer != nil {
		timer.Stop()
	}
	for _, a := range afters {
		a.f()
	}
}
