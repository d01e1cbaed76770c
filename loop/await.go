package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/wait"
)

// ErrNoTask is returned by [Await] where the caller is no task of the loop that ctx is
// a task's of.
var ErrNoTask = errors.New("loop: Await was called without a task's context; pass the one that the task was given, or one made from it")

// Await calls start, and gives the loop to other tasks until resume is called or ctx
// is done. It returns what resume was called with, or ctx's error.
//
// Any goroutine may call resume, also before start has returned; only its first call
// counts, and none after Await has returned. ctx is the context of the task that
// calls Await, or of another of its loop, or made from one; otherwise start is not
// called, and the error is [ErrNoTask].
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

// awaited is what a task waits for.
type awaited[T any] struct {
	mu    sync.Mutex
	spot  wait.Cond
	over  bool // nothing that comes counts any more
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

// Sleep waits for d, or until ctx is done, whose error it returns then. A task that
// calls it with its own context gives the loop to others meanwhile; with a d of 0 to
// those that are ready. Other goroutines just sleep. It takes a timer, and no
// goroutine.
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
		_ = p.Park(context.Background()) // the token is there, or on its way
	}
	w.Release(p)
	return err
}
