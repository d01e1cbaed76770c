package loop

import (
	"context"
	"fmt"
	"iter"
	"runtime/debug"
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
		wake = d.giveTurnsLocked(maxHandoffTurns)
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

// drive is giveTurnsLocked for a driver that does not hold mu.
func (d *driven) drive(maxTurns int) (more bool) {
	d.loop.mu.Lock()
	defer d.loop.mu.Unlock()
	return d.giveTurnsLocked(maxTurns)
}

// giveTurnsLocked gives tasks up to maxTurns turns, or any number if maxTurns is 0. If it returns true,
// more tasks are ready and the caller is still the driver: it must continue or wake another.
// If it returns false, driving is unset. mu is held, and released while tasks run.
func (d *driven) giveTurnsLocked(maxTurns int) (more bool) {
	l := d.loop
	for n := 0; ; n++ {
		if n == maxTurns && maxTurns > 0 && l.ready.first != nil {
			l.giveTurnLocked(nil)
			return true
		}
		t := l.nextTurnLocked()
		if t != nil {
			d.resumeTaskLocked(t)
			continue
		}
		if l.refusal != nil && len(d.idle) > 0 {
			d.endIdleLocked()
			continue
		}
		d.driving = false
		l.signalIfEmptyLocked()
		return false
	}
}

// resumeTaskLocked resumes t, which has the turn, until it waits or ends. mu is held, and
// released while t runs.
func (d *driven) resumeTaskLocked(t *task) {
	l := d.loop
	c := t.coroutine
	if c == nil {
		if d.hostGone { // t would begin on a goroutine that is not the host's
			j := t.job
			l.mu.Unlock()
			j.Drop()
			l.mu.Lock()
			l.removeTaskLocked(t)
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
		l.removeTaskLocked(t)
		return
	}
	l.mu.Unlock()
	c.next()
	over := c.task == nil
	l.mu.Lock()
	if !over {
		return
	}
	l.removeTaskLocked(t)
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

// endIdleLocked ends the idle coroutines. Only the driver calls it. mu is held, and released
// while they end.
func (d *driven) endIdleLocked() {
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
			l.signalIfEmptyLocked()
		}
		l.mu.Unlock()
		return
	}
	d.driving = true
	l.mu.Unlock()
	_ = d.wakeDriver()
}

// NewHosted returns a loop whose tasks run on another event loop, the host, such as that of an
// embedded interpreter or a user interface.
//
// submit passes a function to the host, which must call it once, later, and on a goroutine of its
// choice. If that goroutine is bound to its thread, the host must use the same goroutine each
// time. submit itself must not call the function and must not block, because locks may be held. At
// most one function is pending with the host at a time. Each runs a few tasks and returns, so that
// the host can do other work in between. The host must call every function that submit has
// accepted, even while it shuts down.
//
// An error from submit says that the host takes no more functions. The loop then refuses tasks:
// calls of its handlers end with Unavailable, contexts of tasks are cancelled, and tasks that have
// begun unwind on a goroutine of the loop, still one at a time. If the host's goroutine was bound
// to its thread, these tasks cannot unwind, and stay suspended. Their calls still end, but OnFinish
// and stats handlers might not learn of it. The loop drops functions that were given to Go or
// Post and have not begun, because they might need the host. So close the loop before its host.
// Otherwise, when you wait for the result of a function, also wait for the end of the host. A loop
// notices that its host has ended only when it next submits a function.
//
// Tasks are coroutines: the stack of a task that waits is kept while other tasks run. A task must
// not wait inside a function that the host's interpreter has called, if the interpreter cannot be
// suspended there. NewHosted panics if it is given the option [Coroutines] or [Pinned].
func NewHosted(submit func(func()) error, opts ...Option) *Loop {
	l := newLoop()
	h := &hosted{submit: submit}
	h.driven = driven{loop: l, wakeDriver: h.submitToHost, checksBound: true}
	l.engine = h
	for _, o := range opts {
		o(l)
	}
	if l.engine != engine(h) {
		panic("loop: NewHosted takes neither Coroutines nor Pinned, because its host runs the tasks; leave the option out")
	}
	return l
}

// A hosted is a driven engine whose driver is a function that the host calls.
type hosted struct {
	driven
	submit func(func()) error
}

// maxHostTurns is how many turns one function on the host gives before it returns to the host.
const maxHostTurns = 32

// submitToHost is wakeDriver while there is a host.
func (h *hosted) submitToHost() error {
	if err := h.submit(h.runOnHost); err != nil {
		return h.runWithoutHost(err)
	}
	return nil
}

// runOnHost is the function that the host calls.
func (h *hosted) runOnHost() {
	if h.drive(maxHostTurns) {
		_ = h.wakeDriver()
	}
}

// runWithoutHost starts a goroutine that cancels all tasks and drives instead of the host, so
// that they can end. It returns the reason for which later tasks are refused.
func (h *hosted) runWithoutHost(why error) error {
	l := h.loop
	why = fmt.Errorf("%w: the host takes no more functions: %w", ErrClosed, why)
	l.mu.Lock()
	h.hostGone = true
	h.wakeDriver = h.startOwnDriver // no race: the caller is the driver, or has just set driving
	l.refuseTasksLocked(why)
	l.mu.Unlock()
	l.workers.Go(func() { // the caller may hold locks that Cancelled takes
		l.cancelTasks(why)
		h.drive(0)
	})
	return why
}

// A coroutine runs one task after another. It runs only while next does, and continues
// where its task was suspended. It is made with iter.Pull.
type coroutine struct {
	// task is the task to begin, or the one that is suspended. The coroutine sets it to
	// nil when the task has ended. Resuming the coroutine without a task ends it.
	task *task

	// next runs the coroutine until its task waits or ends. If the goroutine that made the coroutine
	// was bound to a thread, only that goroutine may call next; otherwise any goroutine that is not
	// bound may.
	next func() (struct{}, bool)
	stop func()

	// pause suspends the coroutine and returns control to next. The task calls it.
	pause func(struct{}) bool

	// bound says that the goroutine that made the coroutine was bound to its thread. Only an
	// engine that checks this sets it.
	bound bool

	// abandoned says that the task ended by Goexit, so the coroutine can run no other task.
	abandoned bool
}

func newCoroutine() *coroutine {
	c := new(coroutine)
	c.next, c.stop = iter.Pull(func(pause func(struct{}) bool) {
		c.pause = pause
		for c.task != nil {
			c.run(c.task)
			c.task = nil
			pause(struct{}{})
		}
	})
	return c
}

// run runs t. It stops Goexit and panics of the task. Otherwise iter.Pull would pass them on to
// the goroutine that resumes the task.
func (c *coroutine) run(t *task) {
	t.setGoroutine()
	returned := false
	defer func() {
		if returned {
			return
		}
		if value := recover(); value != nil {
			crash(value)
		}
		c.abandoned, c.task = true, nil
		c.pause(struct{}{}) // until stopAbandoned stops the coroutine
	}()
	t.job.Run()
	returned = true
}

// crash ends the process as an unrecovered panic would.
func crash(value any) {
	p := taskPanic{value, debug.Stack()}
	go func() { panic(p) }()
	select {}
}

// A taskPanic is the value that crash panics with.
type taskPanic struct {
	value any
	stack []byte
}

// Error makes the runtime print the value and the task's stack.
func (p taskPanic) Error() string { return fmt.Sprintf("%v\n\nof a task:\n%s", p.value, p.stack) }

// Coroutines makes tasks coroutines. A caller in process that starts a call or sends a message
// resumes the task on its own goroutine, so no goroutine has to be woken. For calls in process this
// is the fastest kind of loop. It is not the default because handlers run at their callers'
// expense:
//
//   - A caller in process runs the handler until it waits or returns, and perhaps a few other
//     tasks. Until then the caller's wait is not ended by its deadline or cancellation, and its
//     Send does not return. The caller keeps its locks, so a task that needs one of them deadlocks.
//   - A goroutine that is bound to its thread must not be such a caller, or the runtime
//     ends the process. Goroutines that called runtime.LockOSThread, init functions, and functions
//     that C calls are bound. A task must not stay bound to the thread across a wait either.
//   - A task may be on another thread after each wait. Coroutines are reused, and keep
//     the profiler labels of the goroutine that made them. In stack traces a waiting task
//     is a goroutine in the state "coroutine".
//
// After calls from other processes, and after any other wait, a goroutine of the loop resumes the
// task. A panic in a task ends the process, and runtime.Goexit ends its call, as with goroutines.
func Coroutines() Option {
	return func(l *Loop) {
		d := &driven{loop: l, drivenByCallers: true}
		d.wakeDriver = d.startOwnDriver
		l.engine = d
	}
}
