package wait

import "context"

// A Job is the work of a task.
type Job interface {
	// Run does the work.
	Run()

	// Drop is called instead of Run, after Cancelled, if the loop ended before the task
	// began. It tells those who wait for the job.
	Drop()

	// Leave is called, after Cancelled, if the loop ended while Run waited, which then
	// never returns. It tells those who wait for the job.
	Leave()

	// Cancelled is called with the reason when the loop ends before the task has.
	Cancelled(why error)
}

// A Loop runs tasks one at a time. As a Waiter it returns the Parker of the task that
// calls it. A task's context and streams may be used by others: another task of the
// loop then gets its own Parker, and a goroutine that is no task gets a goroutine's.
type Loop interface {
	Waiter

	// Start starts a task for j, or returns why the loop takes none. With handoff the
	// calling goroutine may run the task, and others that are ready, if the loop allows
	// that: it must hold no lock. Otherwise Start returns at once.
	Start(handoff bool, j Job) error

	// RunNow runs j on the calling goroutine if no task has the turn, or if the caller
	// is the task that has it. Otherwise it does nothing and returns false.
	RunNow(j Job) bool

	// AllowsHandoff reports whether goroutines that start or wake tasks may run them.
	AllowsHandoff() bool

	// Inside reports whether the caller is a task of the loop.
	Inside() bool
}

type loopKey struct{}

// LoopKey is the context key of a task's Loop.
var LoopKey any = loopKey{}

// WithLoop returns a context for tasks of l.
func WithLoop(ctx context.Context, l Loop) context.Context {
	return context.WithValue(ctx, loopKey{}, l)
}

// TaskOf returns the Waiter of the caller if it is a task of ctx's loop, and nil if it
// is an ordinary goroutine.
func TaskOf(ctx context.Context) Waiter {
	if l, ok := ctx.Value(LoopKey).(Loop); ok && l.Inside() {
		return l
	}
	return nil
}

// TaskOr is TaskOf, or otherwise if the caller is no task.
func TaskOr(ctx context.Context, otherwise Waiter) Waiter {
	if w := TaskOf(ctx); w != nil {
		return w
	}
	return otherwise
}

// WaiterOf returns ctx's loop, or nil. The loop decides at each wait whether the caller
// is one of its tasks.
func WaiterOf(ctx context.Context) Waiter {
	if l, ok := ctx.Value(LoopKey).(Loop); ok {
		return l
	}
	return nil
}

// Closed waits until c is closed, or ctx is done, whose error it returns.
func Closed(ctx context.Context, c <-chan struct{}) error {
	w := TaskOf(ctx)
	if w == nil {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return DoneErr(ctx)
		}
	}
	p := w.Parker()
	left, gone := make(chan struct{}), make(chan struct{})
	go func() { // a task cannot receive from a channel
		defer close(gone)
		select {
		case <-c:
			p.Unpark()
		case <-left:
		}
	}()
	err := p.Park(ctx)
	if err != nil {
		close(left)
		<-gone
		if p.Park(cancelled) == nil { // a token that came too late
			err = nil
		}
	}
	w.Release(p)
	return err
}

var cancelled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
