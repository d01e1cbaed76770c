package call

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// callContext is what a serverCall needs to be the context of its handler. What
// users seldom look up is made when they do.
//
// The context ends when the handler has returned, when the call is aborted, and
// when the caller's context ends. The last is noticed by whoever waits for the
// call, in process or across a wire; where the caller itself runs the handler
// nobody waits, and the context looks at the caller's when it is asked.
type callContext struct {
	ended atomic.Uint32 // notEnded, or why; written under mu, before done is closed

	mu   sync.Mutex
	done chan struct{} // made when somebody asks
	more *callDetails  // made when somebody asks
}

// Why a context has ended.
const (
	notEnded uint32 = iota
	endCanceled
	endDeadlineExceeded
)

// callDetails is what most calls do without. All of it is guarded by mu of its
// call.
type callDetails struct {
	afters          []*after // to be called when the context ends
	timer           *time.Timer
	stopCaller      func() bool
	incoming        metadata.MD
	header, trailer metadata.MD // set, and not sent yet
	encoding        string      // of replies, if that was set
	labelled        context.Context
}

// An after is a function to call when the context ends.
type after struct{ f func() }

// details returns what is seldom needed. mu is held.
func (c *callContext) details() *callDetails {
	if c.more == nil {
		c.more = new(callDetails)
	}
	return c.more
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// inlineCaller returns the context of a caller that runs the handler, or begins to, and
// so does not look at it itself meanwhile; nil for any other.
func (c *serverCall) inlineCaller() context.Context {
	if c.inline {
		return c.open.Caller
	}
	return nil
}

// Deadline implements [context.Context].
func (c *serverCall) Deadline() (time.Time, bool) { return c.open.Deadline, !c.open.Deadline.IsZero() }

// Done implements [context.Context].
func (c *serverCall) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		if c.ended.Load() != notEnded {
			c.done = closedChan
		} else {
			c.done = make(chan struct{})
			c.watchCaller()
		}
	}
	return c.done
}

// watchCaller ends the context with that of the caller. mu is held.
func (c *serverCall) watchCaller() {
	caller := c.inlineCaller()
	if caller == nil || caller.Done() == nil || c.ended.Load() != notEnded {
		return
	}
	if d := c.details(); d.stopCaller == nil {
		d.stopCaller = wait.AfterFunc(caller, func() { c.callerLeft(wait.DoneErr(caller)) })
	}
}

// callerLeft ends the context with that of a caller that runs the handler. A stream's
// ends with its call, so that the handler's answer to that is not the caller's.
func (c *serverCall) callerLeft(why error) {
	if c.stream != nil {
		c.stream.carrier.Abort(link.ContextEnd(why))
		return
	}
	c.Aborted(link.ContextEnd(why))
}

// Err implements [context.Context].
func (c *serverCall) Err() error {
	why := c.ended.Load()
	if why == notEnded {
		caller := c.inlineCaller()
		if caller == nil || caller.Err() == nil { // the second for speed: mostly it has not ended
			return nil
		}
		err := wait.Err(caller)
		if err == nil {
			return nil
		}
		c.callerLeft(err)
	}
	<-c.Done() // no error is seen before it is closed
	if why = c.ended.Load(); why == endDeadlineExceeded {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// AfterFunc lets package context derive contexts without a goroutine each. It
// arranges for f to be called when the context ends, on another goroutine when
// it has ended already: package context calls AfterFunc under the very lock
// that f takes.
func (c *serverCall) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	if c.ended.Load() != notEnded {
		c.mu.Unlock()
		go f()
		return func() bool { return false }
	}
	a, d := &after{f}, c.details()
	d.afters = append(d.afters, a)
	c.watchCaller()
	c.mu.Unlock()
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range d.afters {
			if d.afters[i] == a {
				last := len(d.afters) - 1
				d.afters[i] = d.afters[last]
				d.afters[last] = nil
				d.afters = d.afters[:last]
				return true
			}
		}
		return false
	}
}

// startTimer ends the context at its deadline, where no caller in this process
// does.
func (c *serverCall) startTimer() {
	deadline := c.open.Deadline
	if deadline.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() == notEnded {
		c.details().timer = time.AfterFunc(time.Until(deadline), func() { c.cancel(context.DeadlineExceeded) })
	}
}

// cancel ends the context with err, one of context's own. The first call wins.
func (c *serverCall) cancel(err error) {
	c.mu.Lock()
	after := c.endContext(err)
	c.mu.Unlock()
	after.run()
}

// An ending is what is left to do, without the lock, after a context has ended.
type ending struct {
	afters []*after
	stop   func() bool
	timer  *time.Timer
}

// endContext is cancel with mu held.
func (c *serverCall) endContext(err error) (e ending) {
	if c.ended.Load() != notEnded {
		return e
	}
	if err == context.DeadlineExceeded {
		c.ended.Store(endDeadlineExceeded)
	} else {
		c.ended.Store(endCanceled)
	}
	if c.done != nil {
		close(c.done)
	}
	if d := c.more; d != nil {
		e = ending{d.afters, d.stopCaller, d.timer}
		d.afters, d.stopCaller, d.timer = nil, nil, nil
	}
	return e
}

func (e *ending) run() {
	if e.stop != nil {
		e.stop()
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	for _, a := range e.afters {
		a.f()
	}
}
