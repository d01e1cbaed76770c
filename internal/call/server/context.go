package server

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// callContext is the part of a serverCall that makes it the handler's context. Rarely used
// fields are allocated on first use.
//
// The context ends when the handler has returned, when the call is aborted, or when the
// caller's context ends. Usually the caller waits for the call, and aborts it when its
// context ends. But if the caller's goroutine runs the handler, the caller does not wait,
// so the context itself checks the caller's.
type callContext struct {
	ended atomic.Uint32 // notEnded, or the reason; written under mu, before done is closed

	mu   sync.Mutex
	done chan struct{} // made on first use
	more *callDetails  // made on first use
}

// Values of callContext.ended.
const (
	notEnded uint32 = iota
	endCanceled
	endDeadlineExceeded
)

// callDetails holds state that most calls do not need. It is guarded by the call's mu.
type callDetails struct {
	afters          []*after    // called when the context ends
	timer           *time.Timer // fires at the deadline
	stopCaller      func() bool // stops watching the caller's context
	incoming        metadata.MD
	header, trailer metadata.MD     // set but not sent yet
	encoding        string          // compressor of replies; empty if not set
	derived         context.Context // the handler's context, if it is not the call itself
}

// An after is a function to call when the context ends.
type after struct{ f func() }

// detailsLocked returns c.more and allocates it on first use.
func (c *callContext) detailsLocked() *callDetails {
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

// inlineCaller returns the caller's context if the caller's goroutine may run the handler, or its
// first part: then the caller does not watch its context. Otherwise it returns nil.
func (c *serverCall) inlineCaller() context.Context {
	if c.inline {
		return c.open.Caller
	}
	return nil
}

func (c *serverCall) Deadline() (time.Time, bool) { return c.open.Deadline, !c.open.Deadline.IsZero() }

func (c *serverCall) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		if c.ended.Load() != notEnded {
			c.done = closedChan
		} else {
			c.done = make(chan struct{})
			c.watchCallerLocked()
		}
	}
	return c.done
}

// watchCallerLocked makes the context end with the context of an inline caller.
func (c *serverCall) watchCallerLocked() {
	caller := c.inlineCaller()
	if caller == nil || caller.Done() == nil || c.ended.Load() != notEnded {
		return
	}
	if d := c.detailsLocked(); d.stopCaller == nil {
		d.stopCaller = wait.AfterFunc(caller, func() { c.callerLeft(wait.DoneErr(caller)) })
	}
}

// callerLeft ends the context because the context of an inline caller ended with why. For a
// stream it aborts the call, so that the caller gets why and not the handler's status.
func (c *serverCall) callerLeft(why error) {
	if c.carried != nil {
		c.carried.abort(link.ContextEnd(why))
		return
	}
	c.Aborted(link.ContextEnd(why))
}

func (c *serverCall) Err() error {
	why := c.ended.Load()
	if why == notEnded {
		caller := c.inlineCaller()
		if caller == nil || caller.Err() == nil { // the second condition is a fast path for wait.Err
			return nil
		}
		err := wait.Err(caller)
		if err == nil {
			return nil
		}
		c.callerLeft(err)
	}
	<-c.Done() // Err must not return an error before Done is closed
	if why = c.ended.Load(); why == endDeadlineExceeded {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// AfterFunc calls f when the context ends. Package context uses it to derive contexts without a
// goroutine for each. If the context has ended, f runs on a new goroutine: package context holds
// a lock when it calls AfterFunc, and f takes that lock.
func (c *serverCall) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	if c.ended.Load() != notEnded {
		c.mu.Unlock()
		go f()
		return func() bool { return false }
	}
	a, d := &after{f}, c.detailsLocked()
	d.afters = append(d.afters, a)
	c.watchCallerLocked()
	c.mu.Unlock()
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(d.afters, a)
		if i >= 0 {
			d.afters = slices.Delete(d.afters, i, i+1)
		}
		return i >= 0
	}
}

// startTimer makes the call end at its deadline. It is used for calls from other
// processes; in process the caller enforces the deadline.
func (c *serverCall) startTimer() {
	deadline := c.open.Deadline
	if deadline.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() == notEnded {
		c.detailsLocked().timer = time.AfterFunc(time.Until(deadline), c.expire)
	}
}

// expire ends the call at its deadline. As in grpc-go, the caller gets a reset, and the
// handler's waits end even if the peer is silent, because it was stopped or is cut off.
func (c *serverCall) expire() {
	if c.carried != nil {
		c.carried.abort(context.DeadlineExceeded)
	}
	c.cancel(context.DeadlineExceeded)
}

// cancel ends the context with err: context.Canceled or context.DeadlineExceeded. Only the first
// cancel has an effect.
func (c *serverCall) cancel(err error) {
	c.mu.Lock()
	after := c.endContextLocked(err)
	c.mu.Unlock()
	after.run()
}

// An ending is the work that remains after a context has ended. run must be called without mu.
type ending struct {
	afters []*after
	stop   func() bool
	timer  *time.Timer
}

// endContextLocked is cancel for a caller that holds mu, which runs the ending when it has unlocked.
func (c *serverCall) endContextLocked(err error) (e ending) {
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

// context returns the handler's context: the call itself, or what the tap handle, goroutine labels
// and a stats handler have derived from it.
func (c *serverCall) context() context.Context {
	if s := c.conn.server; !s.Taps() && !s.scheduler.labels && s.stats == nil {
		return c
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more == nil || c.more.derived == nil {
		return c
	}
	return c.more.derived
}

// derive replaces the handler's context with ctx, which was derived from it.
func (c *serverCall) derive(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.detailsLocked().derived = ctx
}
