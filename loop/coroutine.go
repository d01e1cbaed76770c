package loop

import (
	"fmt"
	"iter"
	"runtime/debug"
)

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
