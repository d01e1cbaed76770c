package loop

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/self"
	"github.com/nearcall/nearcall/internal/wait"
)

// A Loop runs tasks one at a time. Make one with [New] or [NewHosted]. All methods
// may be called by any goroutine, and by tasks, where their documentation does not
// say otherwise.
type Loop struct {
	base    context.Context // of the tasks that Go starts
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup // the goroutines of the loop's own
	others  wait.Pool      // for goroutines that use what is a task's
	engine  engine
	watch   *watch // nil without a watchdog

	running atomic.Uintptr // the holder's id, which is 0 until it begins; written under mu, or by the holder

	// Invariants, under mu:
	//   - At most one task is running: the holder.
	//   - A task that is ready is in ready, and nowhere else. It gets the turn once
	//     for each time that it was put there.
	//   - A task that is parked gets the turn only after Unpark, or the end of the
	//     context that it parked with, has made it ready.
	mu        sync.Mutex
	holder    *task  // whose turn it is
	turns     uint64 // that were given
	ready     queue
	freeTasks *task // those that have ended, to be used again
	freeCount int
	liveCount int           // tasks that have not ended
	liveTasks *task         // those, by their links
	refusal   error         // why no task is taken any more
	closing   bool          // Close waits, and what tasks start is still taken
	closed    bool          // Close was called
	empty     chan struct{} // closed once refusal is set and nothing is left
}

// An engine passes the turn from task to task. Its methods are called with mu held,
// and release it.
type engine interface {
	// queue makes t ready, and sees to it that somebody will come to it. hand says
	// that the caller may run tasks now: it holds no lock and brings a call or a
	// message of its own. The error says that nothing begins any more, t included.
	queue(t *task, hand bool) error

	// park suspends t, which calls it and is parked already, until it has the turn
	// again. It makes t ready when ctx is done before, whose error it returns then.
	// done is ctx's.
	park(t *task, ctx context.Context, done <-chan struct{}) error

	// yield is park for one that is ready again at once.
	yield(t *task)

	// here has a task that begins do j on the caller's goroutine, if nobody has the
	// turn and it can be done. It returns false otherwise, having done nothing.
	runNow(j wait.Job) bool

	// close ends what is kept for later tasks, now that the loop is closed.
	close()
}

// maxIdle is how much a loop keeps for later tasks: goroutines, or coroutines.
const maxIdle = 256

// An Option configures [New] and [NewHosted].
type Option func(*Loop)

// New returns a loop whose tasks are goroutines, unless an option says otherwise. It
// has no goroutine while it has no task, but for those that it keeps for later
// tasks: [Loop.Close] ends them.
func New(opts ...Option) *Loop {
	l := newLoop()
	l.engine = &baton{loop: l}
	for _, o := range opts {
		o(l)
	}
	return l
}

func newLoop() *Loop {
	l := &Loop{empty: make(chan struct{})}
	l.base, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// ErrClosed is returned for tasks that are not started because the loop was closed,
// and is the cause of the cancellation of those that Close does not wait for.
var ErrClosed = errors.New("loop: closed")

// Go starts fn as a task and returns at once; fn runs when its turn comes. It may
// wait: see the package's documentation for how. ctx is the task's. It is cancelled
// when fn returns, and when [Loop.Close] waits no longer.
//
// The error is [ErrClosed] once Close was called, and wraps it where the loop's host
// is gone; fn is not run then.
func (l *Loop) Go(fn func(ctx context.Context)) error {
	_, err := l.start(false, started{l, fn})
	return err
}

// started is what Go starts.
type started struct {
	loop *Loop
	fn   func(context.Context)
}

func (s started) Run() {
	ctx, cancel := context.WithCancel(s.loop.base)
	defer cancel()
	s.fn(wait.WithLoop(ctx, (*handlers)(s.loop)))
}

func (started) Drop()           {}
func (started) Leave()          {}
func (started) Cancelled(error) {} // its context has ended

// Post runs fn when its turn comes, and returns at once. fn must not wait: what
// it waits for in whatever way holds up all of the loop.
//
// The errors are those of [Loop.Go].
func (l *Loop) Post(fn func()) error {
	_, err := l.start(false, posted(fn))
	return err
}

// posted is what Post runs.
type posted func()

func (p posted) Run()          { p() }
func (posted) Drop()           {}
func (posted) Leave()          {}
func (posted) Cancelled(error) {}

// start has j be done by a task. See [wait.Loop]. The error of one that is taken says
// that it is lost.
func (l *Loop) start(hand bool, j wait.Job) (taken bool, err error) {
	l.mu.Lock()
	if !l.acceptsTasks() {
		err := l.refusal
		l.mu.Unlock()
		return false, err
	}
	return true, l.engine.queue(l.newTask(j), hand)
}

// newTask returns a task that is to do j. mu is held.
func (l *Loop) newTask(j wait.Job) *task {
	t := l.freeTasks
	if t == nil {
		t = &task{loop: l}
	} else {
		l.freeTasks, t.after = t.after, nil
		l.freeCount--
		t.token, t.turn, t.coroutine = false, nil, nil
	}
	t.job, t.state = j, ready
	l.liveCount++
	if t.nextLive = l.liveTasks; t.nextLive != nil {
		t.nextLive.prevLive = t
	}
	l.liveTasks = t
	return t
}

// nextTurn passes the turn to the first that is ready, and returns it; nil where nobody
// is. mu is held.
func (l *Loop) nextTurn() *task {
	t := l.ready.pop()
	l.giveTurn(t)
	return t
}

// giveTurn gives the turn to t, or to nobody. mu is held.
func (l *Loop) giveTurn(t *task) {
	l.holder = t
	l.turns++
	if t == nil {
		l.running.Store(0)
	} else {
		l.running.Store(t.id)
		t.state = running
		if l.watch != nil {
			l.watch.start()
		}
	}
}

// caller returns the task that calls it; nil where none does. It is the holder then,
// and stays so until it waits or ends.
func (l *Loop) caller() *task {
	if l.running.Load() != self.ID() {
		return nil
	}
	return l.holder
}

// removeTask takes in that t, which has the turn, is over. mu is held.
func (l *Loop) removeTask(t *task) {
	t.state, t.id, t.job = ended, 0, nil
	l.running.Store(0)
	l.liveCount--
	if t.prevLive == nil {
		l.liveTasks = t.nextLive
	} else {
		t.prevLive.nextLive = t.nextLive
	}
	if t.nextLive != nil {
		t.nextLive.prevLive = t.prevLive
	}
	t.nextLive, t.prevLive = nil, nil
	if l.freeCount < maxIdle {
		t.after, l.freeTasks = l.freeTasks, t
		l.freeCount++
	}
}

// refuseTasks takes no more tasks, whoever starts them. mu is held.
func (l *Loop) refuseTasks(why error) {
	l.closing = false
	if l.refusal == nil || l.refusal == ErrClosed {
		l.refusal = why
	}
}

// acceptsTasks reports whether a task is taken that somebody starts, or the caller if it is
// a task. mu is held.
func (l *Loop) acceptsTasks() bool { return l.refusal == nil || l.closing && l.caller() != nil }

// signalIfEmpty lets Close return once nothing is left. mu is held.
func (l *Loop) signalIfEmpty() {
	if l.refusal == nil || l.liveCount > 0 {
		return
	}
	select {
	case <-l.empty:
		return
	default:
	}
	close(l.empty)
	if l.watch != nil {
		l.watch.stop()
	}
}

var errOwnTask = errors.New("loop: a task cannot close its own loop, as Close waits for it; call Close outside of the loop")

// Close takes no more tasks but from those that there are, and waits for all of them.
// When ctx is done it cancels them, and waits no longer: its error is ctx's then, and
// the loop goes on until they have returned. The contexts of those that Go started
// have [ErrClosed] as the cause; calls of handlers end with Unavailable, as far as a
// server has not ended them before.
//
// It ends what the loop keeps for later tasks. A loop is closed once: the error is
// [ErrClosed] after that. A task cannot close its own loop. Tasks of a pinned loop
// that are left need [Loop.Run] to end, and those of a hosted loop its host: Close is
// not for its goroutine. If the host is gone, Close waits in the same way, and its error
// says so.
func (l *Loop) Close(ctx context.Context) error {
	l.mu.Lock()
	switch {
	case l.caller() != nil:
		l.mu.Unlock()
		return errOwnTask
	case l.closed:
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	if l.refusal == nil {
		l.refusal, l.closing = ErrClosed, true
	}
	l.engine.close()
	select {
	case <-l.empty:
	default: // whatever becomes of ctx
		select {
		case <-l.empty:
		case <-ctx.Done():
			l.cancelTasks(ErrClosed)
			return wait.DoneErr(ctx)
		}
	}
	l.cancel(ErrClosed)
	l.workers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refusal != ErrClosed {
		return l.refusal
	}
	return nil
}

// lose has tasks learn that they can only end any more, and takes none.
func (l *Loop) cancelTasks(why error) {
	l.mu.Lock()
	l.refuseTasks(why)
	jobs := make([]wait.Job, 0, l.liveCount)
	for t := l.liveTasks; t != nil; t = t.nextLive {
		jobs = append(append(jobs, t.job), t.within...)
	}
	l.mu.Unlock()
	l.cancel(why)
	for _, j := range jobs {
		j.Cancelled(why)
	}
}
