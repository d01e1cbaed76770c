package loop

import (
	"context"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/wait"
)

// A task is one job and its state on a loop. It is its own Parker. Tasks are reused after
// they have ended. It implements [wait.Parker], [wait.Abandoner] and [wait.Handoffer].
type task struct {
	loop   *Loop
	job    wait.Job
	id     uintptr       // of its goroutine, as package goid returns it; 0 before it begins
	number atomic.Uint64 // of its goroutine in stack traces; set only if there is a watchdog

	// Guarded by loop.mu.
	state state
	token bool  // left by Unpark while the task was not parked
	after *task // the next in Loop.ready or Loop.freeTasks

	within []wait.Job // jobs that RunNow runs inside this task; guarded by loop.mu

	// turn is the channel from which the task receives its turn. Only batons use it. It is set
	// when the task gets a worker, or at the first wait of a task that runNow began, and does not
	// change after that.
	turn chan struct{}

	// The rest is used by driven engines.
	coroutine   *coroutine       // nil before it begins; only the driver uses it
	waitNumber  uint64           // counts the task's waits; guarded by loop.mu
	expiredWait uint64           // the last wait that ended because its context did; guarded by loop.mu
	onAbandon   []wait.Abandoned // only the task writes it, and only the driver reads it
}

// The states of a task.
type state byte

const (
	ready   state = iota // it is queued, to begin or to continue
	running              // it has the turn
	parked               // it waits for Unpark, or for its context to end
	ended
)

// A queue is a linked list of ready tasks, first in, first out.
type queue struct{ first, last *task }

func (q *queue) push(t *task) {
	if q.last == nil {
		q.first = t
	} else {
		q.last.after = t
	}
	q.last = t
}

// pop removes and returns the first task, or returns nil.
func (q *queue) pop() *task {
	t := q.first
	if t == nil {
		return nil
	}
	if q.first = t.after; q.first == nil {
		q.last = nil
	}
	t.after = nil
	return t
}

// Park implements [wait.Parker]. It gives up the turn, and has it again when it returns.
func (t *task) Park(ctx context.Context) error {
	l := t.loop
	err, done := wait.Err(ctx), ctx.Done() // outside mu: contexts take locks, and may wake tasks
	l.mu.Lock()
	if t.token {
		t.token = false
		l.mu.Unlock()
		return nil
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	t.state = parked
	return l.engine.park(t, ctx, done)
}

func (t *task) Unpark()  { t.unpark(false) }
func (t *task) Handoff() { t.unpark(true) }

func (t *task) unpark(handoff bool) {
	l := t.loop
	l.mu.Lock()
	if t.state != parked {
		t.token = true
		l.mu.Unlock()
		return
	}
	_ = l.engine.queue(t, handoff) // even after an error t continues, on another goroutine
}
