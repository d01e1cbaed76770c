package call

import (
	"context"
	"slices"
	"sync"

	"github.com/nearcall/nearcall/internal/wait"
)

// A quota bounds how many calls run at a time. Whoever comes too many waits,
// first come first served.
//
// A ticket is granted under mu, in the same step that takes it from the queue,
// and is then owed exactly one token.
type quota struct {
	parkers wait.Pool

	mu    sync.Mutex
	free  uint32
	queue []*ticket
}

type ticket struct {
	parker  wait.Parker
	granted bool
}

// take takes a place, waiting for one while ctx lasts.
func (q *quota) take(ctx context.Context) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	t := &ticket{parker: q.parkers.Parker()}
	q.queue = append(q.queue, t)
	q.mu.Unlock()
	defer q.parkers.Release(t.parker)

	err := t.parker.Park(ctx)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	granted := t.granted
	if !granted {
		q.queue = slices.DeleteFunc(q.queue, func(o *ticket) bool { return o == t })
	}
	q.mu.Unlock()
	if granted {
		_ = t.parker.Park(context.Background()) // the token is on its way
		q.give()
	}
	return err
}

// give gives a place back.
func (q *quota) give() {
	q.mu.Lock()
	if len(q.queue) == 0 {
		q.free++
		q.mu.Unlock()
		return
	}
	t := q.queue[0]
	q.queue = slices.Delete(q.queue, 0, 1)
	t.granted = true
	q.mu.Unlock()
	t.parker.Unpark()
}
