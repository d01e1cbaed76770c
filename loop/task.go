package loop

import (
	"context"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/wait"
)

// A task is something that a loop runs by turns with others. It is its own Parker.
type task struct {
	loop   *Loop
	job    wait.Job
	id     uintptr       // of its goroutine, see package self; 0 before it begins
	number atomic.Uint64 // of its goroutine in stack traces, if there is a watchdog

	// Guarded by loop.mu.
	state state
	token bool
	after *task // the next in the loop's ready, or in its free

	nextLive, prevLive *task      // in the loop's lives; guarded by loop.mu
	within             []wait.Job // what runs within it, beside job; guarded by loop.mu

	// Of a baton's: what its goroutine waits for; nil before it begins, or waits
	// where that is not one of the loop's. It does not change then.
	turn chan struct{}

	// Of a driven loop's.
	coroutine   *coroutine // nil before it begins; the driver's
	waitNumber  uint64     // counts its waits; guarded by loop.mu
	expiredWait uint64     // the last that its context ended; guarded by loop.mu
}

// The states of a task.
type state byte

const (
	ready   state = iota // it waits for its turn, to begin or to go on
	running              // it has the turn
	parked               // it waits for its token
	ended
)

// A queue is tasks that are ready, first come first served.
type queue struct{ first, last *task }

func (q *queue) push(t *task) {
	if q.last == nil {
		q.first = t
	} else {
		q.last.after = t
	}
	q.last = t
}

// pop returns nil where there is none.
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

// Park implements [wait.Parker]: the task's turn passes on, and comes back.
func (t *task) Park(ctx context.Context) error {
	l := t.loop
	err, done := wait.Err(ctx), ctx.Done() // which have locks of their own, and may wake tasks
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

// Unpark implements [wait.Parker].
func (t *task) Unpark() { t.unpark(false) }

// Handoff implements [wait.Handoffer].
func (t *task) Handoff() { t.unpark(true) }

func (t *task) unpark(hand bool) {
	l := t.loop
	l.mu.Lock()
	if t.state != parked {
		t.token = true
		l.mu.Unlock()
		return
	}
	_ = l.engine.queue(t, hand) // which takes the token; t goes on, wherever
}
