package loop

import (
	"context"
	"slices"

	"github.com/nearcall/nearcall/internal/wait"
)

// driven is the engine whose tasks are coroutines. At any time at most one goroutine, the
// driver, resumes those that are ready, one after the other.
//
// Invariants, under the loop's mu:
//   - driving says that there is a driver, or that one was woken and will come. If a goroutine
//     makes a task ready and driving is not set, it sets driving, and then drives or wakes a
//     driver. So if a task is ready, driving is set.
//   - Only the driver uses coroutines. It unsets driving in the same critical section in
//     which it finds no task ready.
type driven struct {
	loop *Loop

	// wakeDriver makes another goroutine drive. Its caller is the goroutine that has set driving,
	// or the driver before it stops, and does not hold mu. An error says that the loop begins no
	// more tasks.
	wakeDriver func() error

	// drivenByCallers says that a goroutine that queues a task with handoff may drive.
	drivenByCallers bool

	// Guarded by loop.mu.
	driving     bool
	idle        []*coroutine
	checksBound bool // record in each coroutine whether it is bound to a thread
	hostGone    bool // the host takes no more functions; a goroutine of the loop drives
}

// maxHandoffTurns is how many turns a goroutine gives after it has queued a task with handoff. If
// more are due, a goroutine of the loop drives on, so that the first goroutine can go on with its
// own work.
const maxHandoffTurns = 32

func (d *driven) queue(t *task, handoff bool) error {
	t.state = ready
	d.loop.ready.push(t)
	wake := !d.driving
	d.driving = true
	if wake && handoff && d.drivenByCallers {
		wake = d.giveTurns(maxHandoffTurns)
	}
	d.loop.mu.Unlock()
	if wake {
		return d.wakeDriver()
	}
	return nil
}

// startOwnDriver starts a goroutine that drives until no task is ready. It is the
// wakeDriver of Coroutines, and of a loop after its host has ended.
func (d *driven) startOwnDriver() error {
	d.loop.workers.Go(func() { d.drive(0) })
	return nil
}

// drive is giveTurns for a driver that does not hold mu.
func (d *driven) drive(maxTurns int) (more bool) {
	d.loop.mu.Lock()
	defer d.loop.mu.Unlock()
	return d.giveTurns(maxTurns)
}

// giveTurns gives tasks up to maxTurns turns, or any number if maxTurns is 0. If it returns true,
// more tasks are ready and the caller is still the driver: it must continue or wake another.
// If it returns false, driving is unset. mu is held, and released while tasks run.
func (d *driven) giveTurns(maxTurns int) (more bool) {
	l := d.loop
	for n := 0; ; n++ {
		if n == maxTurns && maxTurns > 0 && l.ready.first != nil {
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

// resumeTask resumes t, which has the turn, until it waits or ends. mu is held, and
// released while t runs.
func (d *driven) resumeTask(t *task) {
	l := d.loop
	c := t.coroutine
	if c == nil {
		if d.hostGone { // t would begin on a goroutine that is not the host's
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
	if d.hostGone && c.bound { // only the host's goroutine could resume c
		jobs := append(t.within, t.job)
		l.mu.Unlock()
		for _, d := range slices.Backward(t.onAbandon) {
			d.Abandoned()
		}
		for _, j := range jobs {
			j.Leave()
		}
		l.mu.Lock()
		l.removeTask(t)
		return
	}
	l.mu.Unlock()
	c.next()
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
		c.next() // ends c, which has no task
		l.mu.Lock()
	}
}

// endIdle ends the idle coroutines. Only the driver calls it. mu is held, and released
// while they end.
func (d *driven) endIdle() {
	idle := d.idle
	d.idle = nil
	d.loop.mu.Unlock()
	for _, c := range idle {
		if !d.hostGone || !c.bound {
			c.next() // ends c, which has no task
		}
	}
	d.loop.mu.Lock()
}

// stopAbandoned ends a coroutine whose task has ended by Goexit. iter.Pull passes the Goexit on
// to the goroutine that calls stop, so stopAbandoned starts a goroutine for that. If the
// coroutine is bound to a thread, no other goroutine may stop it, and it leaks.
func (d *driven) stopAbandoned(c *coroutine) {
	if !isBound() {
		d.loop.workers.Go(c.stop)
	}
}

func (d *driven) park(t *task, ctx context.Context, done <-chan struct{}) error {
	t.waitNumber++
	number := t.waitNumber
	d.loop.mu.Unlock()
	if done == nil {
		t.coroutine.pause(struct{}{})
		return nil
	}
	stop := wait.AfterFunc(ctx, func() { d.wakeExpired(t, number) })
	t.coroutine.pause(struct{}{})
	stop()
	if t.expiredWait == number {
		return wait.DoneErr(ctx)
	}
	return nil
}

// wakeExpired makes t ready because the context of its wait has ended. The parameter number is the
// waitNumber of that wait. If the wait has already ended, wakeExpired does nothing.
func (d *driven) wakeExpired(t *task, number uint64) {
	d.loop.mu.Lock()
	if t.state != parked || t.waitNumber != number {
		d.loop.mu.Unlock()
		return
	}
	t.expiredWait = number
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
	_ = d.wakeDriver()
}
