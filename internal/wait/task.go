package wait

import "context"

// A Task is who waits in a task of an event loop. To others than the task, who have
// got hold of its context or its streams, it gives Parkers of goroutines.
type Task interface {
	Waiter

	// Current reports whether the caller is the task itself.
	Current() bool
}

// A Loop runs tasks one at a time.
type Loop interface {
	// Start has run called as a task, and returns at once. Its error says why it
	// is not.
	Start(run func(Task)) error

	// Here makes a task of the caller, waits for its turn, and calls run. Where
	// the caller is a task of the loop already it just calls run.
	Here(run func(Task)) error
}

type taskKey struct{}

// TaskKey is what a context that is a task's has its Task as a value for.
var TaskKey any = taskKey{}

// WithTask returns a context that is t's.
func WithTask(ctx context.Context, t Task) context.Context {
	return context.WithValue(ctx, taskKey{}, t)
}

// TaskOf returns who waits where the caller does: the task that ctx is of, if the
// caller is that; nil for goroutines.
func TaskOf(ctx context.Context) Waiter {
	if t, ok := ctx.Value(TaskKey).(Task); ok && t.Current() {
		return t
	}
	return nil
}

// WaiterOf returns who waits with ctx, whoever that may be when it does: the task
// that ctx is of, or nil.
func WaiterOf(ctx context.Context) Waiter {
	if t, ok := ctx.Value(TaskKey).(Task); ok {
		return t
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
			return ctx.Err()
		}
	}
	p := w.Parker()
	left, gone := make(chan struct{}), make(chan struct{})
	go func() { // a channel wakes goroutines alone
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
