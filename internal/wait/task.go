package wait

import "context"

// A Task is who waits in a task of an event loop.
type Task interface {
	Waiter

	// Current reports whether the caller is the task itself, and not another
	// goroutine that has got hold of its context.
	Current() bool
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
