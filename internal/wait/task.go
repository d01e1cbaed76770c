package wait

import "context"

// A Job is what a task does.
type Job interface {
	// Run does it.
	Run()

	// Drop is called instead of Run where it cannot be done any more, after Lost. It
	// does what is owed to others.
	Drop()

	// Leave is called instead of Run's return where what has begun can go on no more.
	// It does what is owed to others, after Lost.
	Leave()

	// Lost is called when the task can only end any more, with the reason.
	Lost(why error)
}

// A Loop runs tasks one at a time. Its Parker is that of the task that calls it. What
// is a task's, such as its context and its streams, others may have got hold of:
// another task of the loop gets its own Parker, and anybody else that of a goroutine.
type Loop interface {
	Waiter

	// Start has j done by a task. Its error says why it is not. hand says that the
	// caller may run it, and others, if the loop is one for that: it holds no lock,
	// and brings a call of its own. Otherwise Start returns at once.
	Start(hand bool, j Job) error

	// Here has the caller be a task and do j, if nobody has the turn; if the caller
	// has it, as a task, that goes on and j is done within. Otherwise it returns
	// false, having done nothing.
	Here(j Job) bool

	// Hands reports whether callers of Start, and who brings a message, may run tasks.
	Hands() bool

	// Inside reports whether the caller is a task of the loop.
	Inside() bool
}

type loopKey struct{}

// LoopKey is what a context that is a task's has its Loop as a value for.
var LoopKey any = loopKey{}

// WithLoop returns a context that is of l's tasks.
func WithLoop(ctx context.Context, l Loop) context.Context {
	return context.WithValue(ctx, loopKey{}, l)
}

// TaskOf returns who waits where the caller does: the caller, if it is a task of the
// loop that ctx is of; nil for goroutines.
func TaskOf(ctx context.Context) Waiter {
	if l, ok := ctx.Value(LoopKey).(Loop); ok && l.Inside() {
		return l
	}
	return nil
}

// TaskOr is TaskOf, and otherwise for goroutines.
func TaskOr(ctx context.Context, otherwise Waiter) Waiter {
	if w := TaskOf(ctx); w != nil {
		return w
	}
	return otherwise
}

// WaiterOf returns who waits with ctx, whoever that may be when it does: a task of
// the loop that ctx is of, or nil.
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
