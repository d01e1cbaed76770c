package loop

import (
	"context"

	"github.com/nearcall/nearcall/internal/wait"
)

// driven is an engine whose tasks are coroutines. They run on the goroutine of
// whoever drives: it resumes those that are ready, one after the other.
//
// Invariants, under the loop's mu:
//   - driving says that somebody drives, or was called to. Whoever finds it unset
//     and makes a task ready sets it, and calls somebody. So nobody is ready while
//     nobody drives or will.
//   - The driver alone has the coroutines, and unsets driving in the same step in
//     which it finds nobody ready.
type driven struct {
	loop *Loop

	// call has somebody drive, as driving was just set. The error says that nothing
	// begins any more. mu is not held.
	call func() error

	// drivenByCallers says that whoever brings a message or a call may drive.
	drivenByCallers bool

	// Guarded by loop.mu.
	driving     bool
	idle        []*coroutine
	checksBound bool // whether coroutines are bound
	hostGone    bool // the goroutine that has driven is gone
}

// maxHanded is how many turns whoever brought a message gives at most before it goes
// on with what is its own. Somebody else drives then.
const maxHanded = 32

func (d *driven) queue(t *task, hand bool) error {
	t.state = ready
	d.loop.ready.push(t)
	called := !d.driving
	d.driving = true
	if called && hand && d.drivenByCallers {
		called = d.giveTurns(maxHanded)
	}
	d.loop.mu.Unlock()
	if called {
		return d.call()
	}
	return nil
}

// callOwn has a goroutine of the loop's own drive.
func (d *driven) callOwn() error {
	d.loop.workers.Go(func() { d.drive(0) })
	return nil
}

// drive is giveTurns for those who were called.
func (d *driven) drive(most int) (more bool) {
	d.loop.mu.Lock()
	defer d.loop.mu.Unlock()
	return d.giveTurns(most)
}

// giveTurns gives up to most turns, any number if that is 0. It reports whether more are
// due, for which the caller still drives: otherwise nobody does any more. mu is held,
// and released meanwhile.
func (d *driven) giveTurns(most int) (more bool) {
	l := d.loop
	for n := 0; ; n++ {
		if n == most && most > 0 && l.ready.first != nil {
			l.giveTurn(nil)
			return true
		}
		t := l.nextTurn()
		if t != nil {
			d.resumeTask(t)
			continue
		}
		if l.refusal != nil && len(d.idle) > 0 {
			d.endIdle()
			continue
		}
		d.driving = false
		l.signalIfEmpty()
		return false
	}
}

// resumeTask resumes t, which has the turn. mu is held, and released meanwhile.
func (d *driven) resumeTask(t *task) {
	l := d.loop
	c := t.coroutine
	if c == nil {
		if d.hostGone { // what begins would do so elsewhere
			j := t.job
			l.mu.Unlock()
			j.Drop()
			l.mu.Lock()
			l.removeTask(t)
			return
		}
		if n := len(d.idle); n > 0 {
			c = d.idle[n-1]
			d.idle = d.idle[:n-1]
		} else {
			c = newCoroutine()
			c.bound = d.checksBound && isBound()
		}
		c.task, t.coroutine = t, c
	}
	if d.hostGone && c.bound { // to what drives no more
		jobs := append(t.within, t.job)
		l.mu.Unlock()
		for _, j := range jobs {
			j.Leave()
		}
		l.mu.Lock()
		l.removeTask(t)
		return
	}
	l.mu.Unlock()
	c.resume()
	over := c.task == nil
	l.mu.Lock()
	if !over {
		return
	}
	l.removeTask(t)
	switch {
	case c.abandoned:
		d.stopAbandoned(c)
	case len(d.idle) < maxIdle:
		d.idle = append(d.idle, c)
	default:
		l.mu.Unlock()
		c.resume() // without a task
		l.mu.Lock()
	}
}

// endIdle ends the coroutines that are kept for later tasks. mu is held, and released
// meanwhile.
func (d *driven) endIdle() {
	idle := d.idle
	d.idle = nil
	d.loop.mu.Unlock()
	for _, c := range idle {
		if !d.hostGone || !c.bound {
			c.resume() // without a task
		}
	}
	d.loop.mu.Lock()
}

// stopAbandoned ends a coroutine whose task has left it by Goexit, which whoever stops it is
// ended by, too. That takes a goroutine for nothing else. Where coroutines are bound
// to a thread no other goroutine may stop one, and it stays.
func (d *driven) stopAbandoned(c *coroutine) {
	if !isBound() {
		d.loop.workers.Go(c.stop)
	}
}

func (d *driven) park(t *task, ctx context.Context, done <-chan struct{}) error {
	t.waitNumber++
	nap := t.waitNumber
	d.loop.mu.Unlock()
	if done == nil {
		t.coroutine.pause(struct{}{})
		return nil
	}
	stop := wait.AfterFunc(ctx, func() { d.wakeExpired(t, nap) })
	t.coroutine.pause(struct{}{})
	stop()
	if t.expiredWait == nap {
		return wait.DoneErr(ctx)
	}
	return nil
}

// wakeExpired makes t ready because the context has ended that it waits with, unless it
// waits no more in the way that nap counts.
func (d *driven) wakeExpired(t *task, nap uint64) {
	d.loop.mu.Lock()
	if t.state != parked || t.waitNumber != nap {
		d.loop.mu.Unlock()
		return
	}
	t.expiredWait = nap
	_ = d.queue(t, true)
}

func (d *driven) yield(t *task) {
	t.state = ready
	d.loop.ready.push(t)
	d.loop.mu.Unlock()
	t.coroutine.pause(struct{}{})
}

func (d *driven) runNow(wait.Job) bool {
	d.loop.mu.Unlock()
	return false
}

func (d *driven) close() {
	l := d.loop
	if d.driving || len(d.idle) == 0 {
		if !d.driving {
			l.signalIfEmpty()
		}
		l.mu.Unlock()
		return
	}
	d.driving = true
	l.mu.Unlock()
	_ = d.call()
}
