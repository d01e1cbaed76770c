package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
)

// ErrNoTask is returned by [Await] if ctx does not come from a task, or the caller is not
// a task of the same loop.
var ErrNoTask = errors.New("loop: Await was called without a task's context; pass the one that the task was given, or one made from it")

// Await calls start, and lets other tasks run until resume is called or ctx is done. It
// returns the arguments of resume, or ctx's error.
//
// Any goroutine may call resume, even before start has returned. Only the first call
// counts; calls after Await has returned do nothing. ctx must be the context of a task,
// or derived from one, and the caller must be a task of the same loop. Otherwise Await
// does not call start and returns [ErrNoTask].
func Await[T any](ctx context.Context, start func(resume func(T, error))) (T, error) {
	var none T
	w := wait.TaskOf(ctx)
	if w == nil {
		return none, ErrNoTask
	}
	if err := wait.Err(ctx); err != nil {
		return none, err
	}
	a := new(awaited[T])
	start(a.resume)
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.over {
		if err := a.spot.WaitContext(ctx, &a.mu, w); err != nil && !a.over {
			a.over = true
			return none, err
		}
	}
	return a.value, a.err
}

// awaited is the state that one call of Await shares with its resume function.
type awaited[T any] struct {
	mu    sync.Mutex
	spot  wait.Cond
	over  bool // resume was called or ctx is done: later calls of resume do nothing
	value T
	err   error
}

func (a *awaited[T]) resume(value T, err error) {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	a.over, a.value, a.err = true, value, err
	p := a.spot.Wake()
	a.mu.Unlock()
	wait.Unpark(p)
}

// Sleep waits for d. It returns ctx's error if ctx is done first. If a task calls it with its own
// context, other tasks run while it sleeps. If d is 0 or less, each task that is ready gets a
// turn. A goroutine that is not a task just sleeps. Sleep uses a timer but no goroutine.
func Sleep(ctx context.Context, d time.Duration) error {
	w := wait.TaskOf(ctx)
	if w == nil {
		w = new(wait.Pool)
	}
	if err := wait.Err(ctx); err != nil || d <= 0 {
		if y, ok := w.(interface{ Yield() }); ok && err == nil {
			y.Yield()
		}
		return err
	}
	p := w.Parker()
	timer := time.AfterFunc(d, p.Unpark)
	err := p.Park(ctx)
	if err != nil && !timer.Stop() {
		_ = p.Park(context.Background()) // take the token that the timer leaves
	}
	w.Release(p)
	return err
}
