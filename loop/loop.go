package loop

import (
	"context"
	"errors"
	"sync"

	"github.com/nearcall/nearcall/internal/self"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Loop runs tasks one at a time. Make one with [New]. All methods may be called
// by any goroutine, and by tasks where their documentation does not say otherwise.
//
// Whose turn it is holds the loop. Tasks are goroutines, and the turn passes from
// one to the next directly: no goroutine of the loop's stands between.
//
// Invariants, under mu:
//   - At most one task is running: the holder. Where there is none nobody waits
//     in ready.
//   - A task that is ready is in ready, and nowhere else. It gets the turn once
//     for each time that it was put there.
//   - A task that is parked gets the turn only after Unpark, or the end of the
//     context that it parked with, has made it ready.
type Loop struct {
	base    context.Context // of the tasks that Go starts
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
	others  wait.Pool // for goroutines that use what is a task's

	mu     sync.Mutex
	holder *task // whose turn it is; nil while nobody is ready
	ready  queue
	idle   []*worker
	live   int // tasks that have not ended
	closed bool
	empty  chan struct{} // closed once closed is set and no task is left
}

// mostIdle is how many goroutines a loop keeps for later tasks.
const mostIdle = 256

// An Option configures [New].
type Option func(*Loop)

// New returns a loop. It has no goroutine while it has no task, but for those
// that it keeps for later tasks: [Loop.Close] ends them.
func New(opts ...Option) *Loop {
	l := &Loop{empty: make(chan struct{})}
	l.base, l.cancel = context.WithCancelCause(context.Background())
	for _, o := range opts {
		o(l)
	}
	return l
}

// ErrClosed is returned for tasks that are not started because the loop was closed,
// and is the cause of the cancellation of those that Close does not wait for.
var ErrClosed = errors.New("loop: it is closed")

// Go starts fn as a task and returns at once; fn runs when its turn comes. It may
// wait: see the package's documentation for how. ctx is the task's. It is cancelled
// when fn returns, and when [Loop.Close] waits no longer.
//
// The error is [ErrClosed] once Close was called; fn is not run then.
func (l *Loop) Go(fn func(ctx context.Context)) error {
	return l.start(func(t *task) {
		ctx, cancel := context.WithCancel(l.base)
		defer cancel()
		fn(t.context(ctx))
	})
}

// Post has fn run when its turn comes, and returns at once. fn may not wait: what
// it waits for in whatever way holds up all of the loop.
//
// The error is [ErrClosed] once Close was called; fn is not run then.
func (l *Loop) Post(fn func()) error {
	return l.start(func(*task) { fn() })
}

// start makes a task of run.
func (l *Loop) start(run func(*task)) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.live++
	next := l.enqueue(&task{loop: l, run: run})
	l.mu.Unlock()
	l.resume(next)
	return nil
}

// enqueue makes t ready. It returns t if it is its turn already, for the caller to
// resume. mu is held.
func (l *Loop) enqueue(t *task) *task {
	t.state = ready
	l.ready.push(t)
	if l.holder != nil {
		return nil
	}
	return l.handOver()
}

// handOver is next, and has a goroutine for a task that begins, if one is idle. mu
// is held.
func (l *Loop) handOver() *task {
	t := l.next()
	if n := len(l.idle); n > 0 && t != nil && t.turn == nil {
		w := l.idle[n-1]
		l.idle = l.idle[:n-1]
		w.task, t.turn = t, w.turn
	}
	return t
}

// next passes the turn to the first that is ready, and returns it; nil where nobody
// is. mu is held.
func (l *Loop) next() *task {
	t := l.ready.pop()
	l.holder = t
	if t != nil {
		t.state = running
	}
	return t
}

// resume has t, which has the turn, go on or begin. t may be nil. mu is not held.
func (l *Loop) resume(t *task) {
	switch {
	case t == nil:
	case t.turn != nil:
		t.turn <- struct{}{} // has room: it waits for exactly one
	default:
		w := &worker{task: t, turn: make(chan struct{}, 1)}
		t.turn = w.turn
		l.workers.Go(func() { l.work(w) })
	}
}

// end takes in that t, which has the turn, is over. mu is held.
func (l *Loop) end(t *task) {
	t.state = ended
	t.id.Store(0)
	if l.live--; l.closed && l.live == 0 {
		close(l.empty)
	}
}

// A worker is a goroutine that runs tasks, and is kept for the next.
type worker struct {
	task *task         // the next; nil to end. It is written before the turn comes
	turn chan struct{} // has room for one
}

func (l *Loop) work(w *worker) {
	for w.task != nil {
		l.run(w.task)
		l.mu.Lock()
		l.end(w.task)
		w.task = nil
		next := l.next()
		if next != nil && next.turn == nil { // it begins, and may as well do so here
			w.task, next.turn = next, w.turn
			l.mu.Unlock()
			continue
		}
		keep := !l.closed && len(l.idle) < mostIdle
		if keep {
			l.idle = append(l.idle, w)
		}
		l.mu.Unlock()
		l.resume(next)
		if keep {
			<-w.turn
		}
	}
}

// run runs t, which has the turn. If that does not return, for Goexit or a panic that
// goes on, the turn passes on here.
func (l *Loop) run(t *task) {
	t.id.Store(self.ID())
	returned := false
	defer func() {
		if !returned {
			l.mu.Lock()
			l.end(t)
			next := l.handOver()
			l.mu.Unlock()
			l.resume(next)
		}
	}()
	t.run(t)
	returned = true
}

var errOwnTask = errors.New("loop: Close is called by a task of the loop, for which it would wait")

// Close takes no more tasks, and waits for those that there are. When ctx is done
// it cancels the contexts of those that Go started, with [ErrClosed] as the cause,
// and waits no longer: its error is ctx's then, and the loop goes on until they
// have returned.
//
// It ends the goroutines that the loop keeps. A loop is closed once: the error is
// [ErrClosed] after that. A task cannot close its own loop.
func (l *Loop) Close(ctx context.Context) error {
	l.mu.Lock()
	switch {
	case l.holder != nil && l.holder.isCaller():
		l.mu.Unlock()
		return errOwnTask
	case l.closed:
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	idle := l.idle
	l.idle = nil
	if l.live == 0 {
		close(l.empty)
	}
	l.mu.Unlock()
	for _, w := range idle {
		w.turn <- struct{}{} // without a task
	}
	select {
	case <-l.empty:
	default: // whatever becomes of ctx
		select {
		case <-l.empty:
		case <-ctx.Done():
			l.cancel(ErrClosed)
			return ctx.Err()
		}
	}
	l.cancel(ErrClosed)
	l.workers.Wait()
	return nil
}
