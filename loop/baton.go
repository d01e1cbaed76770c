package loop

import (
	"context"

	"github.com/nearcall/nearcall/internal/self"
	"github.com/nearcall/nearcall/internal/wait"
)

// A baton is an engine whose tasks are goroutines: the turn passes from one to the
// next directly, and no goroutine of the loop's stands between.
//
// Invariant, under the loop's mu: where nobody has the turn nobody is ready.
type baton struct {
	loop *Loop
	idle []*worker // guarded by loop.mu
}

// A worker is a goroutine that runs tasks, and is kept for the next.
type worker struct {
	task *task         // the next; nil to end. It is written before the turn comes
	turn chan struct{} // has room for one
}

// enqueue makes t ready. It returns t if it is its turn already, for the caller to
// resume. mu is held.
func (b *baton) enqueue(t *task) *task {
	l := b.loop
	t.state = ready
	l.ready.push(t)
	if l.holder != nil {
		return nil
	}
	return b.nextTurn()
}

// nextTurn is next, and has a goroutine for a task that begins, if one is idle. mu
// is held.
func (b *baton) nextTurn() *task {
	t := b.loop.nextTurn()
	if n := len(b.idle); n > 0 && t != nil && t.turn == nil {
		w := b.idle[n-1]
		b.idle = b.idle[:n-1]
		w.task, t.turn = t, w.turn
	}
	return t
}

// resume has t, which has the turn, go on or begin. t may be nil. mu is not held.
func (b *baton) resume(t *task) {
	switch {
	case t == nil:
	case t.turn != nil:
		t.turn <- struct{}{} // has room: it waits for exactly one
	default:
		w := &worker{task: t, turn: make(chan struct{}, 1)}
		t.turn = w.turn
		b.loop.workers.Go(func() { b.work(w) })
	}
}

func (b *baton) queue(t *task, _ bool) error {
	next := b.enqueue(t)
	b.loop.mu.Unlock()
	b.resume(next)
	return nil
}

func (b *baton) park(t *task, ctx context.Context, done <-chan struct{}) error {
	l := b.loop
	t.makeTurn()
	next := b.nextTurn()
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
	if t.state != parked { // the token was faster
		l.mu.Unlock()
		<-t.turn
		return nil
	}
	own := b.enqueue(t)
	l.mu.Unlock()
	if own == nil {
		<-t.turn
	}
	return wait.DoneErr(ctx)
}

func (b *baton) yield(t *task) {
	t.makeTurn()
	t.state = ready
	b.loop.ready.push(t)
	next := b.nextTurn()
	b.loop.mu.Unlock()
	b.resume(next)
	<-t.turn
}

// makeTurn has t have a turn to wait for, which one that runs on a caller's goroutine
// has no use for before. mu is held.
func (t *task) makeTurn() {
	if t.turn == nil {
		t.turn = make(chan struct{}, 1)
	}
}

// removeTask is over for a task of b's. mu is held.
func (b *baton) removeTask(t *task) {
	b.loop.removeTask(t)
	b.loop.signalIfEmpty()
}

func (b *baton) work(w *worker) {
	l := b.loop
	for w.task != nil {
		b.run(w.task)
		l.mu.Lock()
		b.removeTask(w.task)
		w.task = nil
		next := l.nextTurn()
		if next != nil && next.turn == nil { // it begins, and may as well do so here
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

// run runs t, which has the turn. If that does not return, for Goexit or a panic that
// goes on, the turn passes on here.
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

// finishTask ends t, which has the turn, and passes it on.
func (b *baton) finishTask(t *task) {
	b.loop.mu.Lock()
	b.removeTask(t)
	next := b.nextTurn()
	b.loop.mu.Unlock()
	b.resume(next)
}

func (b *baton) runNow(j wait.Job) bool {
	l := b.loop
	if l.holder != nil {
		l.mu.Unlock()
		return false
	}
	t := l.newTask(j)
	l.giveTurn(t)
	l.mu.Unlock()
	b.run(t)
	b.finishTask(t)
	return true
}

func (b *baton) close() {
	idle := b.idle
	b.idle = nil
	b.loop.signalIfEmpty()
	b.loop.mu.Unlock()
	for _, w := range idle {
		w.turn <- struct{}{} // without a task
	}
}

// setGoroutine notes that the calling goroutine is t's.
func (t *task) setGoroutine() {
	t.id = self.ID()
	t.loop.running.Store(t.id)
	if t.loop.watch != nil {
		t.number.Store(goroutineNumber())
	}
}
