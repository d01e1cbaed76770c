package loop

import (
	"context"

	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/wait"
)

// A baton is the engine whose tasks are goroutines. Each passes the turn to the next
// directly, without a scheduler in between.
//
// Invariant, under the loop's mu: if no task has the turn, none is ready. So a goroutine that makes a
// task ready while no task has the turn gives that task the turn.
type baton struct {
	loop *Loop
	idle []*worker // guarded by loop.mu
}

// A worker is a goroutine that runs one task after another.
type worker struct {
	task *task         // the next task, or nil to end; written before turn is sent to
	turn chan struct{} // carries the turn to the task; buffered for one
}

// enqueueLocked makes t ready. If no task has the turn, it gives the turn to t and returns t, which
// the caller must resume.
func (b *baton) enqueueLocked(t *task) *task {
	l := b.loop
	t.state = ready
	l.ready.push(t)
	if l.holder != nil {
		return nil
	}
	return b.nextTurnLocked()
}

// nextTurnLocked calls Loop.nextTurnLocked. If the next task has not begun, nextTurnLocked gives it
// an idle worker, if there is one. The caller must resume the task.
func (b *baton) nextTurnLocked() *task {
	t := b.loop.nextTurnLocked()
	if n := len(b.idle); n > 0 && t != nil && t.turn == nil {
		w := b.idle[n-1]
		b.idle = b.idle[:n-1]
		w.task, t.turn = t, w.turn
	}
	return t
}

// resume continues t, which has the turn, or begins it on a new worker. It does nothing
// if t is nil. mu is not held.
func (b *baton) resume(t *task) {
	switch {
	case t == nil:
	case t.turn != nil:
		t.turn <- struct{}{} // does not block: a task is sent one turn at a time
	default:
		w := &worker{task: t, turn: make(chan struct{}, 1)}
		t.turn = w.turn
		b.loop.workers.Go(func() { b.work(w) })
	}
}

func (b *baton) queue(t *task, _ bool) error {
	next := b.enqueueLocked(t)
	b.loop.mu.Unlock()
	b.resume(next)
	return nil
}

func (b *baton) park(t *task, ctx context.Context, done <-chan struct{}) error {
	l := b.loop
	t.makeTurnLocked()
	next := b.nextTurnLocked()
	l.mu.Unlock()
	b.resume(next)
	if done == nil {
		<-t.turn
		return nil
	}
	select {
	case <-t.turn:
		return nil
	case <-done:
	}
	l.mu.Lock()
	if t.state != parked { // Unpark came first, and the turn will follow
		l.mu.Unlock()
		<-t.turn
		return nil
	}
	own := b.enqueueLocked(t)
	l.mu.Unlock()
	if own == nil {
		<-t.turn
	}
	return wait.DoneErr(ctx)
}

func (b *baton) yield(t *task) {
	t.makeTurnLocked()
	t.state = ready
	b.loop.ready.push(t)
	next := b.nextTurnLocked()
	b.loop.mu.Unlock()
	b.resume(next)
	<-t.turn
}

// makeTurnLocked ensures that t has a channel to receive its turn from. A task that runNow began
// has no channel before its first wait.
func (t *task) makeTurnLocked() {
	if t.turn == nil {
		t.turn = make(chan struct{}, 1)
	}
}

// removeTaskLocked calls Loop.removeTaskLocked, and lets Close return after the last task.
func (b *baton) removeTaskLocked(t *task) {
	b.loop.removeTaskLocked(t)
	b.loop.signalIfEmptyLocked()
}

// work is the goroutine of w. It runs w.task. If the next task has not begun, work runs it,
// too, and so on. If the next task has begun, or there is none, work passes the turn on, and
// becomes idle or ends.
func (b *baton) work(w *worker) {
	l := b.loop
	for w.task != nil {
		b.run(w.task)
		l.mu.Lock()
		b.removeTaskLocked(w.task)
		w.task = nil
		next := l.nextTurnLocked()
		if next != nil && next.turn == nil { // it has not begun: run it here
			w.task, next.turn = next, w.turn
			l.mu.Unlock()
			continue
		}
		keep := l.refusal == nil && len(b.idle) < maxIdle
		if keep {
			b.idle = append(b.idle, w)
		}
		l.mu.Unlock()
		b.resume(next)
		if keep {
			<-w.turn
		}
	}
}

// run runs t, which has the turn, on the calling goroutine. If t's job ends by Goexit or a panic,
// run passes the turn on before the goroutine ends. Otherwise the caller of run passes it on.
func (b *baton) run(t *task) {
	t.setGoroutine()
	returned := false
	defer func() {
		if !returned {
			b.finishTask(t)
		}
	}()
	t.job.Run()
	returned = true
}

// finishTask removes t, which has the turn, and passes the turn on.
func (b *baton) finishTask(t *task) {
	b.loop.mu.Lock()
	b.removeTaskLocked(t)
	next := b.nextTurnLocked()
	b.loop.mu.Unlock()
	b.resume(next)
}

func (b *baton) runNow(j wait.Job) bool {
	l := b.loop
	if l.holder != nil {
		l.mu.Unlock()
		return false
	}
	t := l.newTaskLocked(j)
	l.giveTurnLocked(t)
	l.mu.Unlock()
	b.run(t)
	b.finishTask(t)
	return true
}

func (b *baton) close() {
	idle := b.idle
	b.idle = nil
	b.loop.signalIfEmptyLocked()
	b.loop.mu.Unlock()
	for _, w := range idle {
		w.turn <- struct{}{} // w.task is nil, so the worker ends
	}
}

// setGoroutine records that t, which has the turn, runs on the calling goroutine.
func (t *task) setGoroutine() {
	t.id = goid.ID()
	t.loop.running.Store(t.id)
	if t.loop.watch != nil {
		t.number.Store(numberOf(header()))
	}
}
