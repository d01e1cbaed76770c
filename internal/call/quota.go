package call

import (
	"container/list"
	"context"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A quota limits the number of calls that run at a time. Further calls wait in
// first-come order.
//
// Invariant: a ticket is granted or refused under mu when it leaves the queue, and then
// gets exactly one token.
type quota struct {
	parkers wait.Pool

	mu     sync.Mutex
	free   uint32
	queue  list.List // of *ticket; many can leave it at once when their deadlines pass
	closed error     // reason of close; nil before
}

type ticket struct {
	parker  wait.Parker
	granted bool
	refused error
}

// acquire takes a place. It waits for one until ctx is done or the quota is closed.
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
	place := q.queue.PushBack(t)
	q.mu.Unlock()
	defer w.Release(t.parker)

	err := t.parker.Park(ctx)
	if err == nil {
		return t.refused
	}
	q.mu.Lock()
	granted, refused := t.granted, t.refused
	if !granted && refused == nil {
		q.queue.Remove(place)
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

// close refuses all waiting and later calls for reason.
func (q *quota) close(reason error) {
	q.mu.Lock()
	q.closed = reason
	var waiting []*ticket
	for q.queue.Len() > 0 {
		t := q.queue.Remove(q.queue.Front()).(*ticket)
		t.refused = reason
		waiting = append(waiting, t)
	}
	q.mu.Unlock()
	for _, t := range waiting {
		t.parker.Unpark()
	}
}

// release frees a place, or passes it to the first waiting call.
func (q *quota) release() {
	q.mu.Lock()
	if q.queue.Len() == 0 {
		q.free++
		q.mu.Unlock()
		return
	}
	t := q.queue.Remove(q.queue.Front()).(*ticket)
	t.granted = true
	q.mu.Unlock()
	t.parker.Unpark()
}
