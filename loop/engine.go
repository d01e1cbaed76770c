package loop

import (
	"bytes"
	"context"
	"runtime"
	"strconv"

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
