package loop

import (
	"fmt"
	"iter"
	"runtime/debug"
)

// A coroutine runs tasks, one after the other, each from where it was suspended
// whenever it is resumed. What iter.Pull makes is one.
type coroutine struct {
	task *task // the next, or the one that is suspended; nil when that is over, and to end
	next func() (struct{}, bool)
	stop func()

	// pause suspends. The task calls it.
	pause func(struct{}) bool

	// bound says that it is bound to a thread, where somebody asks.
	bound bool

	// abandoned says that its task did not return, and that nothing can run here any
	// more.
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

// resume lets the coroutine go on until its task waits or is over. Whoever resumes a
// coroutine for the first time is bound to a thread, or is not, and so must be all
// that resume it later.
func (c *coroutine) resume() { c.next() }

// run runs t. Neither Goexit nor a panic gets to whoever resumes: it has nothing to
// do with the task.
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
		c.pause(struct{}{}) // what is left of it is stopped
	}()
	t.job.Run()
	returned = true
}

// crash ends the process, as a panic does on a goroutine of its own.
func crash(value any) {
	p := taskPanic{value, debug.Stack()}
	go func() { panic(p) }()
	select {}
}

// A taskPanic is a panic of a task.
type taskPanic struct {
	value any
	stack []byte
}

// Error has the runtime print all of it.
func (p taskPanic) Error() string { return fmt.Sprintf("%v\n\nof a task:\n%s", p.value, p.stack) }
