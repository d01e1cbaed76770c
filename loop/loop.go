// Package loop runs tasks one at a time, and lets others run while a task waits.
//
// State that only tasks of one loop touch needs no lock: at most one of them runs at any time, and
// each sees what earlier ones have written. A task that waits lets the next ready task run, in the
// order in which they became ready, and queues again when its wait ends.
//
//	l := loop.New()
//	err := l.Go(func(ctx context.Context) {
//		n := counter                           // a plain variable
//		err := loop.Sleep(ctx, time.Second)    // other tasks run
//		counter = n + 1                        // and may have changed it
//	})
//
// # How a task waits
//
// A task waits in [Sleep], in [Await] for anything that calls back, and in calls of
// nearcall's clients. All of them need the task's context, or one derived from it.
// Handlers of services that were registered with Server.OnLoop of package nearcall are tasks,
// too, and wait in Send and Recv of their streams. Anything else that blocks, such as
// a mutex, a channel or a file, blocks the loop, as in any event loop.
//
// # Who runs a task
//
// By default each task has its own goroutine. With the option [Coroutines] tasks run on
// the goroutines of callers, with [Pinned] on the goroutine that calls [Loop.Run], and
// with [NewHosted] on another event loop.
//
// # What ends a task
//
// A task ends when its function returns, or by runtime.Goexit; the loop continues. A panic
// ends the process, as on any goroutine. [Loop.Close] waits for tasks, and cancels the
// contexts of those that take too long.
package loop

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Loop runs tasks one at a time. Make one with [New] or [NewHosted]. Any goroutine and any task
// may call all methods whose documentation does not restrict that.
type Loop struct {
	handle

	base    context.Context // the parent of contexts of tasks that Go starts
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup // goroutines that the loop has started
	others  wait.Pool      // Parkers of goroutines that wait with a task's context or streams
	engine  engine
	watch   *watch // nil without a watchdog

	// running is the goroutine ID of the holder, or 0 until the holder begins and while
	// there is none. It is written under mu, or by the holder.
	running atomic.Uintptr

	// Invariants, under mu:
	//   - At most one task is running: the holder.
	//   - A task in state ready is in the ready queue exactly once, or has the turn already. It
	//     gets the turn once for each time it was queued.
	//   - A parked task becomes ready only by Unpark, or when the context that it parked with ends.
	mu        sync.Mutex
	holder    *task  // the task that has the turn, or nil
	turns     uint64 // counts the changes of holder
	ready     queue
	freeTasks *task // ended tasks that are kept for reuse, linked by after
	freeCount int
	live      map[*task]struct{} // tasks that have not ended
	refusal   error              // why the loop takes no more tasks; nil while it takes them
	closing   bool               // Close waits, and tasks may still start others
	closed    bool               // Close was called
	empty     chan struct{}      // closed once refusal is set and no task is left
}

// An Option configures [New] and [NewHosted].
type Option func(*Loop)

// New returns a loop. Without options its tasks are goroutines. A loop without tasks has no
// goroutines except idle ones that it keeps for later tasks; [Loop.Close] ends those.
func New(opts ...Option) *Loop {
	l := newLoop()
	l.engine = &baton{loop: l}
	for _, o := range opts {
		o(l)
	}
	return l
}

func newLoop() *Loop {
	l := &Loop{live: make(map[*task]struct{}), empty: make(chan struct{})}
	l.handle = wait.HandleOf((*handlers)(l))
	l.base, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// ErrClosed is the error of starting a task on a closed loop, and the cancellation cause
// of tasks that Close stopped waiting for.
var ErrClosed = errors.New("loop: closed")

// Go starts fn as a task and returns at once; fn runs when its turn comes. It may
// wait as the package documentation describes. ctx identifies the task. It is cancelled
// when fn returns, or when [Loop.Close] stops waiting.
//
// Go returns [ErrClosed] after Close was called, and an error that wraps it if the
// loop's host has ended. fn is not run then.
func (l *Loop) Go(fn func(ctx context.Context)) error {
	return l.Post(func() {
		ctx, cancel := context.WithCancel(l.base)
		defer cancel()
		fn(wait.WithLoop(ctx, (*handlers)(l)))
	})
}

// Post queues fn and returns at once; fn runs when its turn comes. fn must not wait: it
// has no context to wait with, so it would block the whole loop.
//
// It returns the errors of [Loop.Go].
func (l *Loop) Post(fn func()) error {
	_, err := l.start(false, funcJob(fn))
	return err
}

// A funcJob is the job of a task that Go or Post has started. Loop.cancel ends its context, if it has one.
type funcJob func()

func (j funcJob) Run()          { j() }
func (funcJob) Drop()           {}
func (funcJob) Leave()          {}
func (funcJob) Cancelled(error) {}

// start starts a task for j, as Start of [wait.Loop] does. taken says whether the loop took j. If
// the loop took j and start returns an error, the host has ended and j is dropped.
func (l *Loop) start(handoff bool, j wait.Job) (taken bool, err error) {
	l.mu.Lock()
	if !l.acceptsTasksLocked() {
		err := l.refusal
		l.mu.Unlock()
		return false, err
	}
	return true, l.engine.queue(l.newTaskLocked(j), handoff)
}

// newTaskLocked returns a task that will run j.
func (l *Loop) newTaskLocked(j wait.Job) *task {
	t := l.freeTasks
	if t == nil {
		t = &task{loop: l}
	} else {
		l.freeTasks, t.after = t.after, nil
		l.freeCount--
		t.token, t.turn, t.coroutine = false, nil, nil
	}
	t.job, t.state = j, ready
	l.live[t] = struct{}{}
	return t
}

// nextTurnLocked gives the turn to the first task in the ready queue and returns that task. If none
// is ready, no task has the turn and nextTurnLocked returns nil.
func (l *Loop) nextTurnLocked() *task {
	t := l.ready.pop()
	l.giveTurnLocked(t)
	return t
}

// giveTurnLocked gives the turn to t. If t is nil, no task has the turn.
func (l *Loop) giveTurnLocked(t *task) {
	l.holder = t
	l.turns++
	if t == nil {
		l.running.Store(0)
	} else {
		l.running.Store(t.id)
		t.state = running
		if l.watch != nil {
			l.watch.startLocked()
		}
	}
}

// caller returns the task that calls it, or nil if the caller is not a task of l. A task that
// calls it is the holder, and remains the holder until it waits or ends, so mu need not be held.
func (l *Loop) caller() *task {
	if l.running.Load() != goid.ID() {
		return nil
	}
	return l.holder
}

// removeTaskLocked records that t, which has the turn, has ended, and keeps it for reuse. It does
// not pass the turn on.
func (l *Loop) removeTaskLocked(t *task) {
	t.state, t.id, t.job = ended, 0, nil
	l.running.Store(0)
	delete(l.live, t)
	if l.freeCount < maxIdle {
		t.after, l.freeTasks = l.freeTasks, t
		l.freeCount++
	}
}

// refuseTasksLocked makes the loop refuse all new tasks with the error why, including those that
// its own tasks start. An earlier error other than ErrClosed stays.
func (l *Loop) refuseTasksLocked(why error) {
	l.closing = false
	if l.refusal == nil || l.refusal == ErrClosed {
		l.refusal = why
	}
}

// acceptsTasksLocked reports whether the caller may start a task. While Close waits, only tasks of
// l may.
func (l *Loop) acceptsTasksLocked() bool { return l.refusal == nil || l.closing && l.caller() != nil }

// signalIfEmptyLocked closes the channel in the field empty if the loop refuses tasks and no task
// is left.
func (l *Loop) signalIfEmptyLocked() {
	if l.refusal == nil || len(l.live) > 0 {
		return
	}
	select {
	case <-l.empty:
		return
	default:
	}
	close(l.empty)
	if l.watch != nil && l.watch.timer != nil {
		l.watch.timer.Stop() // for good
	}
}

var errOwnTask = errors.New("loop: a task cannot close its own loop, as Close waits for it; call Close outside of the loop")

// Close refuses new tasks, except those that running tasks start, and waits until all
// tasks have ended. If ctx is done first, Close cancels the remaining tasks and returns
// ctx's error; the loop keeps running them until they return. The contexts of tasks that
// Go started are cancelled with [ErrClosed] as the cause. Calls that run as tasks end with
// Unavailable, if their server has not ended them already.
//
// Close also ends the idle goroutines or coroutines that the loop keeps for later tasks.
// A second Close returns [ErrClosed]. A task cannot close its own loop. The remaining
// tasks of a pinned loop need [Loop.Run] to end, and those of a hosted loop need its host,
// so do not call Close on the goroutine that runs them. If the host has ended, Close waits
// in the same way, and returns an error that says so.
func (l *Loop) Close(ctx context.Context) error {
	l.mu.Lock()
	switch {
	case l.caller() != nil:
		l.mu.Unlock()
		return errOwnTask
	case l.closed:
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	if l.refusal == nil {
		l.refusal, l.closing = ErrClosed, true
	}
	l.engine.close()
	select {
	case <-l.empty:
	default: // an empty loop closes without an error even if ctx is done
		select {
		case <-l.empty:
		case <-ctx.Done():
			l.cancelTasks(ErrClosed)
			return wait.DoneErr(ctx)
		}
	}
	l.cancel(ErrClosed)
	l.workers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusal != ErrClosed {
		return l.refusal
	}
	return nil
}

// cancelTasks refuses new tasks, and cancels all tasks that have not ended. The parameter why is
// the cause.
func (l *Loop) cancelTasks(why error) {
	l.mu.Lock()
	l.refuseTasksLocked(why)
	jobs := make([]wait.Job, 0, len(l.live))
	for t := range l.live {
		jobs = append(append(jobs, t.job), t.within...)
	}
	l.mu.Unlock()
	l.cancel(why)
	for _, j := range jobs {
		j.Cancelled(why)
	}
}
