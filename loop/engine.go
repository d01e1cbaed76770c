package loop

import (
	"bytes"
	"context"
	"runtime"
	"strconv"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/wait"
)

// # The turn
//
// A loop has one turn. The task that has the turn is the holder, and only the holder runs. All
// other tasks are parked or in the ready queue. The turn changes hands under Loop.mu. So
// everything that a holder does happens before everything that the next one does, in the sense of
// Go's memory model. So tasks need no locks for state that only they touch.
//
// A task joins the ready queue when it is started or unparked, or when its context ends while
// it is parked. It gives up the turn when it parks, yields or ends, and the turn goes to
// the first task in the queue. Loop and task keep this state; an engine decides which
// goroutine runs the next holder.
//
// # The engines
//
// There are two ways to run the holder, and four kinds of loops:
//
//   - baton (New without an option): a task is a goroutine. The goroutine that gives up the turn
//     takes the next task off the ready queue and sends the turn to its goroutine, on the channel
//     task.turn. There is no scheduler in between. Idle goroutines are kept for later tasks. If no
//     task has the turn, a call in process may run its handler on the caller's goroutine (runNow).
//
//   - driven (the three other kinds): a task is a coroutine, made with iter.Pull. A driver takes
//     tasks off the ready queue one after the other and resumes each until it parks, yields or
//     ends; control then returns to the driver.
//
// The kinds of driven loops differ in which goroutine is the driver: see Coroutines, Pinned and
// NewHosted. If Run of a pinned loop returns because its context is done, driving stays set and
// ready tasks stay queued until the same goroutine calls Run again.
//
// If a coroutine was made by a goroutine that is bound to its thread, only that goroutine may
// resume it. Otherwise any goroutine that is not bound may. The runtime ends the process if this
// is violated. All rules about threads in this package follow from it.

// An engine runs the tasks that have the turn, and passes the turn on. Each method is
// called with mu held, and releases it.
type engine interface {
	// queue makes t ready, and ensures that it gets the turn. handoff says that the calling
	// goroutine may run tasks before queue returns, which requires that it holds no lock. An error
	// says that the loop begins no more tasks. In that case t is dropped if it has not begun.
	queue(t *task, handoff bool) error

	// park suspends t until it has the turn again. t is the caller, and its state is
	// parked already. If ctx is done before t is unparked, park makes t ready itself
	// and returns ctx's error. done is ctx.Done().
	park(t *task, ctx context.Context, done <-chan struct{}) error

	// yield puts t, which is the caller, at the end of the ready queue, and suspends it until
	// it has the turn again.
	yield(t *task)

	// runNow runs j as a new task on the calling goroutine if no task has the turn, and returns
	// true when j has ended. Otherwise, or if the engine cannot, it does nothing and returns false.
	runNow(j wait.Job) bool

	// close ends the idle goroutines or coroutines. The loop takes no more tasks from outside.
	close()
}

// maxIdle is how many ended tasks, and how many idle goroutines or coroutines, a loop keeps
// for later tasks.
const maxIdle = 256

// header returns the first line of the caller's stack trace, such as "goroutine 7
// [running, locked to thread]:". It takes about a microsecond.
func header() []byte {
	b := make([]byte, 128)
	line, _, _ := bytes.Cut(b[:runtime.Stack(b, false)], []byte("\n"))
	return line
}

// isBound reports whether the calling goroutine is bound to its thread.
func isBound() bool { return bytes.Contains(header(), []byte("locked to thread")) }

// numberOf returns the goroutine number in a header, or 0.
func numberOf(header []byte) uint64 {
	digits, _, _ := bytes.Cut(bytes.TrimPrefix(header, []byte("goroutine ")), []byte(" "))
	n, _ := strconv.ParseUint(string(digits), 10, 64)
	return n
}

// A task is one job and its state on a loop. It is its own Parker. Tasks are reused after
// they have ended. It implements [wait.Parker], [wait.Abandoner] and [wait.Handoffer].
type task struct {
	loop   *Loop
	job    wait.Job
	id     uintptr       // of its goroutine, as package goid returns it; 0 before it begins
	number atomic.Uint64 // of its goroutine in stack traces; set only if there is a watchdog

	// Guarded by loop.mu.
	state state
	token bool  // left by Unpark while the task was not parked
	after *task // the next in Loop.ready or Loop.freeTasks

	within []wait.Job // jobs that RunNow runs inside this task; guarded by loop.mu

	// turn is the channel from which the task receives its turn. Only batons use it. It is set
	// when the task gets a worker, or at the first wait of a task that runNow began, and does not
	// change after that.
	turn chan struct{}

	// The rest is used by driven engines.
	coroutine   *coroutine       // nil before it begins; only the driver uses it
	waitNumber  uint64           // counts the task's waits; guarded by loop.mu
	expiredWait uint64           // the last wait that ended because its context did; guarded by loop.mu
	onAbandon   []wait.Abandoned // only the task writes it, and only the driver reads it
}

// The states of a task.
type state byte

const (
	ready   state = iota // it is queued, to begin or to continue
	running              // it has the turn
	parked               // it waits for Unpark, or for its context to end
	ended
)

// A queue is a linked list of ready tasks, first in, first out.
type queue struct{ first, last *task }

func (q *queue) push(t *task) {
	if q.last == nil {
		q.first = t
	} else {
		q.last.after = t
	}
	q.last = t
}

// pop removes and returns the first task, or returns nil.
func (q *queue) pop() *task {
	t := q.first
	if t == nil {
		return nil
	}
	if q.first = t.after; q.first == nil {
		q.last = nil
	}
	t.after = nil
	return t
}

// Park implements [wait.Parker]. It gives up the turn, and has it again when it returns.
func (t *task) Park(ctx context.Context) error {
	l := t.loop
	err, done := wait.Err(ctx), ctx.Done() // outside mu: contexts take locks, and may wake tasks
	l.mu.Lock()
	if t.token {
		t.token = false
		l.mu.Unlock()
		return nil
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	t.state = parked
	return l.engine.park(t, ctx, done)
}

func (t *task) Unpark()  { t.unpark(false) }
func (t *task) Handoff() { t.unpark(true) }

func (t *task) unpark(handoff bool) {
	l := t.loop
	l.mu.Lock()
	if t.state != parked {
		t.token = true
		l.mu.Unlock()
		return
	}
	_ = l.engine.queue(t, handoff) // even after an error t continues, on another goroutine
}
