package call

import (
	"context"
	"slices"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A quota bounds how many calls run at a time. Whoever comes too many waits,
// first come first served.
//
// A ticket is granted or refused under mu, in the same step that takes it from
// the queue, and is then owed exactly one token.
type quota struct {
	parkers wait.Pool

	mu     sync.Mutex
	free   uint32
	queue  []*ticket
	closed error // why nobody is admitted any more
}

type ticket struct {
	parker  wait.Parker
	granted bool
	refused error
}

// acquire takes a place, waiting for one while ctx lasts.
func (q *quota) acquire(ctx context.Context) error {
	q.mu.Lock()
	if err := q.closed; err != nil {
		q.mu.Unlock()
		return err
	}
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	w := wait.TaskOr(ctx, &q.parkers)
	t := &ticket{parker: w.Parker()}
	q.queue = append(q.queue, t)
	q.mu.Unlock()
	defer w.Release(t.parker)

	err := t.parker.Park(ctx)
	if err == nil {
		return t.refused
	}
	q.mu.Lock()
	granted, refused := t.granted, t.refused
	if !granted && refused == nil {
		q.queue = slices.DeleteFunc(q.queue, func(o *ticket) bool { return o == t })
	}
	q.mu.Unlock()
	if granted || refused != nil {
		_ = t.parker.Park(context.Background()) // the token is on its way
	}
	if granted {
		q.release()
	}
	return link.ContextEnd(err)
}

// close refuses everybody who waits or comes, for reason.
func (q *quota) close(reason error) {
	q.mu.Lock()
	waiting := q.queue
	q.queue, q.closed = nil, reason
	for _, t := range waiting {
		t.refused = reason
	}
	q.mu.Unlock()
	for _, t := range waiting {
		t.parker.Unpark()
	}
}

// release gives a place back.
func (q *quota) release() {
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
