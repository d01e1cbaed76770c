package transporttest

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/wait"
)

// Tasks is a minimal event loop. Its tasks are coroutines that one goroutine
// runs in turn. It implements [wait.Waiter] for them: a task that parks is
// suspended. It panics if a Parker holds a token when a task gets or releases it,
// which package wait rules out.
type Tasks struct {
	running *task          // used only by the goroutine in Run, and its tasks
	inside  atomic.Uintptr // the goroutine ID of the running task; 0 for none

	mu       sync.Mutex
	runnable []*task
	awake    chan struct{} // capacity 1; a token means a task is runnable or closed is set
	closed   bool
}

// A task is a coroutine, and its own Parker.
type task struct {
	loop   *Tasks
	id     uintptr // 0 until the task has begun
	resume func() (struct{}, bool)
	yield  func(struct{}) bool

	// Guarded by loop.mu.
	parked bool
	token  bool
	ctxErr error
}

// NewTasks returns a loop. The caller must run it with Run.
func NewTasks() *Tasks { return &Tasks{awake: make(chan struct{}, 1)} }

// Go starts f as a task. Any goroutine may call it.
func (l *Tasks) Go(f func()) {
	t := &task{loop: l}
	t.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		t.id = goid.ID()
		l.inside.Store(t.id)
		f()
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readyLocked(t)
}

// Run runs tasks until Close was called and no task is runnable.
func (l *Tasks) Run() {
	for {
		l.mu.Lock()
		if len(l.runnable) == 0 {
			closed := l.closed
			l.mu.Unlock()
			if closed {
				return
			}
			<-l.awake
			continue
		}
		l.running = l.runnable[0]
		l.runnable = l.runnable[1:]
		l.mu.Unlock()
		l.inside.Store(l.running.id)
		l.running.resume()
		l.inside.Store(0)
		l.running = nil
	}
}

// Close makes Run return once no task is runnable. Suspended tasks stay suspended.
func (l *Tasks) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.wake()
}

// readyLocked makes t runnable. The caller holds mu.
func (l *Tasks) readyLocked(t *task) {
	l.runnable = append(l.runnable, t)
	l.wake()
}

func (l *Tasks) wake() {
	select {
	case l.awake <- struct{}{}:
	default:
	}
}

// Parker implements [wait.Waiter]. Only tasks may call it.
func (l *Tasks) Parker() wait.Parker {
	if !l.Inside() {
		panic("transporttest: something that is no task waits on a loop")
	}
	t := l.running
	t.empty("is asked for")
	return t
}

// Inside reports whether the caller is the running task.
func (l *Tasks) Inside() bool { return l.inside.Load() == goid.ID() }

// Release implements [wait.Waiter].
func (l *Tasks) Release(p wait.Parker) { p.(*task).empty("is released") }

// Yield lets other tasks run before the calling task continues.
func (l *Tasks) Yield() {
	t := l.running
	l.mu.Lock()
	l.readyLocked(t)
	l.mu.Unlock()
	t.yield(struct{}{})
}

func (t *task) empty(when string) {
	t.loop.mu.Lock()
	defer t.loop.mu.Unlock()
	if t.token {
		panic("transporttest: a Parker " + when + " that holds a token")
	}
}

// Park implements [wait.Parker].
func (t *task) Park(ctx context.Context) error {
	l := t.loop
	l.mu.Lock()
	if t.token {
		t.token = false
		l.mu.Unlock()
		return nil
	}
	t.parked, t.ctxErr = true, nil
	l.mu.Unlock()
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = wait.AfterFunc(ctx, func() { t.cancel(wait.DoneErr(ctx)) })
	}
	t.yield(struct{}{})
	stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.ctxErr != nil {
		return t.ctxErr
	}
	t.token = false
	return nil
}

// cancel ends a Park with err, unless a token has ended it.
func (t *task) cancel(err error) {
	t.loop.mu.Lock()
	defer t.loop.mu.Unlock()
	if t.parked {
		t.parked, t.ctxErr = false, err
		t.loop.readyLocked(t)
	}
}

// Unpark implements [wait.Parker].
func (t *task) Unpark() {
	t.loop.mu.Lock()
	defer t.loop.mu.Unlock()
	t.token = true
	if t.parked {
		t.parked = false
		t.loop.readyLocked(t)
	}
}
