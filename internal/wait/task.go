package wait

import (
	"context"
	"errors"
)

// A Job is the work of a task.
type Job interface {
	// Run does the work.
	Run()

	// Drop is called after Cancelled, instead of Run, if the loop ends before the task begins. It
	// wakes the goroutines and tasks that wait for the job.
	Drop()

	// Leave is called after Cancelled if the loop ends while Run waits. Run then never returns.
	// Leave wakes the goroutines and tasks that wait for the job.
	Leave()

	// Cancelled is called with the reason if the loop ends before the task.
	Cancelled(why error)
}

// A Loop runs tasks one at a time. Its Parker method returns the calling task's Parker.
// Other tasks and goroutines may use a task's context and streams, too. Each task gets its own
// Parker, and each goroutine a goroutine's.
type Loop interface {
	Waiter

	// Start starts a task for j, or returns an error that says why the loop accepts no tasks. If
	// handoff is set and the loop allows it, the calling goroutine, which must hold no lock, may
	// run the task and others that are ready. Otherwise Start returns at once.
	Start(handoff bool, j Job) error

	// RunNow runs j on the calling goroutine if no task is running, or if the caller
	// is the running task. Otherwise it does nothing and returns false.
	RunNow(j Job) bool

	// AllowsHandoff reports whether goroutines that start or wake tasks may run them.
	AllowsHandoff() bool

	// Inside reports whether the caller is a task of the loop.
	Inside() bool
}

// A Handle is embedded in types that stand for a Loop and hide its methods.
type Handle struct{ loop Loop }

// HandleOf returns a Handle for l.
func HandleOf(l Loop) Handle { return Handle{l} }

func (h *Handle) standsFor() Loop { return h.loop }

// LoopOf returns the Loop that h, which embeds a [Handle], stands for.
func LoopOf(h interface{ standsFor() Loop }) Loop { return h.standsFor() }

type loopKey struct{}

// LoopKey is the context key of a task's Loop.
var LoopKey any = loopKey{}

// WithLoop returns a context for tasks of l.
func WithLoop(ctx context.Context, l Loop) context.Context {
	return context.WithValue(ctx, loopKey{}, l)
}

// TaskOf returns ctx's loop if the caller is one of its tasks, and nil otherwise.
func TaskOf(ctx context.Context) Waiter {
	if l, ok := ctx.Value(LoopKey).(Loop); ok && l.Inside() {
		return l
	}
	return nil
}

// TaskOr is like TaskOf, but returns its second argument instead of nil.
func TaskOr(ctx context.Context, otherwise Waiter) Waiter {
	if w := TaskOf(ctx); w != nil {
		return w
	}
	return otherwise
}

// WaiterOf returns ctx's loop, or nil if it has none. The caller need not be a task: the
// loop checks that at each wait.
func WaiterOf(ctx context.Context) Waiter {
	if l, ok := ctx.Value(LoopKey).(Loop); ok {
		return l
	}
	return nil
}

// Closed waits until c is closed. It returns ctx's error if ctx is done first.
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
	go func() { // a task must park, not receive from a channel
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
		if p.Park(cancelled) == nil { // take a late token: p must hold none in Release
			err = nil
		}
	}
	w.Release(p)
	return err
}

// Outside runs f, which may block its goroutine, and returns f's error. If the caller is a task, f
// runs on another goroutine and w waits for it, so that the task does not block its loop. A panic of
// f continues in the task, which may recover it; if the task was abandoned, nobody sees it. After Goexit in f, Outside returns an error.
func Outside(w Waiter, f func() error) error {
	if l, ok := w.(interface{ Inside() bool }); w == nil || ok && !l.Inside() {
		return f()
	}
	p := w.Parker()
	err := errGoexit
	var panicked any
	go func() {
		defer func() {
			panicked = recover()
			p.Unpark()
		}()
		err = f()
	}()
	_ = p.Park(context.Background())
	w.Release(p)
	if panicked != nil {
		panic(panicked)
	}
	return err
}

var errGoexit = errors.New("a function that ran for a task called runtime.Goexit")

var cancelled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
