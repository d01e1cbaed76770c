package server

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// A scheduler decides whether and where the calls of a server run. A call passes it once: start
// lets the call run, lets it wait for one of its connection's places (see admission), or refuses
// it. A call that may run goes to one of five goroutines: its caller's, the one that reads its
// session, a loop's, a worker's that is idle, or a new worker's.
type scheduler struct {
	place  options.Placement // as configured
	labels bool              // handlers' goroutines are labelled

	// mu also guards the admissions of the server's connections, so that a call can begin to run
	// and be queued for a worker under one lock.
	mu      sync.Mutex
	workers workers
	inline  inlineCalls
}

// onCaller reports whether the handler of a unary call in process runs on its caller's goroutine,
// whose context is caller.
func (s *scheduler) onCaller(m *method, caller context.Context) bool {
	switch {
	case wait.TaskOf(caller) != nil:
		return false // the caller is a task: it is suspended, and other tasks run
	case m.loop != nil && m.loop.Inside():
		return true // waiting for another task of this loop would deadlock
	case s.place != options.Auto:
		return s.place == options.Inline
	}
	// A handler must not delay a caller that may leave. And the caller's goroutine may have labels
	// that are not in its context. They would be lost when label restores the context's.
	return caller.Done() == nil && !s.labels
}

// inlineStream returns c's transport stream if c's handler may run inline there. Otherwise it returns nil.
func (c *serverCall) inlineStream() link.InlineStream {
	m, s := c.method, &c.conn.server.scheduler
	if c.unary != nil || m.unary == nil || m.loop != nil || s.place == options.OnWorkers || s.labels {
		return nil
	}
	l, ok := c.carried.transportStream.(link.InlineStream)
	if !ok || !l.MayRunInline(m.handlerTime.expected()) {
		return nil
	}
	return l
}

// The tap handle of a server is asked as in grpc-go: for each call, known method or not, before the
// call waits for a place and before stats handlers and interceptors see it, on the goroutine that
// reads the connection. In process that is the caller's.

// askTap asks the server's tap handle. It returns false if the handle has refused the call, which
// has then ended.
func (c *serverCall) askTap() bool {
	if !c.conn.server.Taps() {
		return true
	}
	c.conn.reportBegin() // for the context
	ctx, refusal := c.conn.server.AskTap(c, &tap.Info{FullMethodName: c.open.Method, Header: c.incomingMetadata()})
	if refusal == nil {
		c.derive(ctx)
		return true
	}
	c.finish(refusal)
	c.conn.admission.giveBackAhead()
	if c.carried != nil && c.carried.stream == nil {
		c.carried.leave()
	}
	return false
}

// start runs c, on its caller's goroutine if onCaller is set. Otherwise it returns at once, with two
// exceptions. If c's method has a loop that lets callers run tasks, start returns when the task
// waits or ends. If the session reads each call on another goroutine, start waits for a place. If
// start returns an error, c does not run, and its context has ended.
func (s *scheduler) start(c *serverCall, onCaller bool) (err error) {
	if !c.askTap() {
		return nil
	}
	a, inline := &c.conn.admission, c.inlineStream()
	var up wakeUp
	s.mu.Lock()
	t, err := a.enterLocked(c)
	if err == nil && t == nil && !onCaller {
		up = s.queueLocked(c, inline)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
	case t == nil && onCaller:
		err = s.runOnCaller(c)
	case t == nil:
		err = s.run(c, inline, up)
	case c.conn.peer.Parallel:
		defer a.decide()
		err = s.startQueued(t, c, inline)
	default:
		go func() {
			defer a.decide()
			if err := s.startQueued(t, c, nil); err != nil {
				c.abort(err)
				c.cancel(context.Canceled)
			}
		}()
	}
	if err != nil {
		c.cancel(context.Canceled)
	}
	return err
}

// startQueued is start for a call that waits as t. It ends c if c's context ends before c has a
// place.
func (s *scheduler) startQueued(t *queuedCall, c *serverCall, inline link.InlineStream) error {
	a := &c.conn.admission
	if err := a.wait(c, t); err != nil {
		if t.refused != nil {
			return t.refused
		}
		c.finish(status.FromContextError(c.Err()))
		return nil
	}
	var up wakeUp
	s.mu.Lock()
	err := a.beginLocked(c)
	if err == nil {
		up = s.queueLocked(c, inline)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.run(c, inline, up)
}

// queueLocked queues c, which is among the running calls, for the workers, if one is to run it.
func (s *scheduler) queueLocked(c *serverCall, inline link.InlineStream) wakeUp {
	if inline != nil || c.method.loop != nil {
		return wakeUp{}
	}
	s.workers.queue.push(c)
	return s.workers.wakeLocked()
}

// run passes c, which is among the running calls, to the goroutine that runs it. up wakes a worker
// for c if it is queued for one.
func (s *scheduler) run(c *serverCall, inline link.InlineStream, up wakeUp) error {
	switch {
	case inline != nil:
		inline.RunInline((*inlineHandler)(c), c.method.handlerTime.expected())
	case c.method.loop != nil:
		return s.startOnLoop(c)
	default:
		up.wake(s)
	}
	return nil
}

// runOnCaller runs c, which is among the running calls, on the calling goroutine, which belongs to
// c's caller. If it returns an error, it has removed c, and c does not run.
func (s *scheduler) runOnCaller(c *serverCall) error {
	if c.method.loop == nil {
		c.onCaller = true
		c.run()
		s.finished(c)
		return nil
	}
	c.onCaller = true
	if c.method.loop.RunNow((*loopJob)(c)) {
		return nil
	}
	c.onCaller = false
	c.inline = c.method.runsOnCaller
	return s.startOnLoop(c)
}

// A loopJob is a call that runs as a loop's task. It implements [wait.Job].
type loopJob serverCall

func (j *loopJob) Run() {
	c := (*serverCall)(j)
	c.run()
	c.conn.server.scheduler.finished(c)
}

// Drop implements [wait.Job]. Cancelled has ended the call, so Run does not run its handler.
func (j *loopJob) Drop() { j.Run() }

// Leave implements [wait.Job]. Cancelled has ended the call. Its handler waits forever.
func (j *loopJob) Leave() { j.conn.server.scheduler.finished((*serverCall)(j)) }

func (j *loopJob) Cancelled(why error) {
	c := (*serverCall)(j)
	c.abort(fmt.Errorf("the method %s runs on a loop that runs no more: %v", c.method.name, why))
}

// startOnLoop runs c, which is among the running calls, as a task of its method's loop. If
// it returns an error, it has removed c, and c does not run.
func (s *scheduler) startOnLoop(c *serverCall) error {
	// In process this is the caller's goroutine, which may run tasks. Otherwise it is
	// the session's reader, which must not.
	err := c.method.loop.Start(c.conn.peer.Local, (*loopJob)(c))
	if err == nil {
		return nil
	}
	s.finished(c)
	return refused("the method %s runs on a loop that takes no more tasks: %v", c.method.name, err)
}

// finished records that c has ended.
func (s *scheduler) finished(c *serverCall) {
	s.mu.Lock()
	next := s.endLocked(c)
	s.mu.Unlock()
	wait.Unpark(next)
}

// endLocked removes c, which has ended, from the running calls. It returns the Parker to unpark,
// nil for none.
func (s *scheduler) endLocked(c *serverCall) wait.Parker {
	delete(s.inline.seen, c)
	return c.conn.admission.endLocked(c)
}

// close ends the idle workers. Busy ones end after their handler has returned.
func (s *scheduler) close() {
	s.mu.Lock()
	idle := s.workers.closeLocked()
	s.inline.endLocked()
	s.mu.Unlock()
	for _, wake := range idle {
		close(wake)
	}
}

// An admission decides which calls of one session may run, which wait, and which are refused. A
// call needs one of the session's places to run, and gives it back when its handler has
// returned. At the limit calls wait in first-come order, each as a queuedCall. Where a call
// waits depends on its session:
//
//   - A caller in this process waits itself, before it makes the call: see admit.
//   - A session that reads each call on another goroutine lets that goroutine wait.
//   - Otherwise one goroutine reads the session, and it never waits for a place: the handlers that
//     have the places may wait for its next input, such as a message or a RESET. So another
//     goroutine waits with each call. A call that is reset stops waiting, so the session's
//     limit of open calls bounds how many such goroutines there are.
//
// The session's limit alone is not enough, because it counts only open calls: a peer can open calls
// and reset each at once, faster than their handlers return.
//
// Invariants, under mu:
//   - Each running call has a place. So has each call that got a place and has not begun to run.
//   - While calls are queued, all places are taken, and new calls are not refused. A place
//     that is given back goes to the first of them.
//   - A queuedCall that leaves the queue is decided, and its parker then gets exactly one token, unless
//     its call gave up.
//   - onIdle is called, one time, as soon as new calls are refused, no call runs, and each call that
//     waited on the server's side knows that it is refused.
type admission struct {
	mu      *sync.Mutex         // the scheduler's
	limit   int                 // of places; 0 for no limit
	ahead   bool                // callers take their places with admit, before their calls arrive
	onIdle  func()              // called once, with mu held
	counter options.CallCounter // counts the running calls as well; may be nil
	parkers wait.Pool

	// Guarded by mu.
	running   []*serverCall // each at its index
	taken     int           // places
	queue     list.List     // of *queuedCall; many can leave it at once when their deadlines pass
	undecided int           // calls that waited on this side and do not run or know a refusal yet
	refusal   error         // why new calls are refused; nil if they are not
	isIdle    bool          // onIdle was called
}

// A queuedCall is a call that waits for a place.
type queuedCall struct {
	admission *admission
	waiter    wait.Waiter
	parker    wait.Parker
	queued    *list.Element
	decided   bool  // it has left the queue, with a place or refused
	refused   error // why it was refused
}

// queueLocked queues a call that waits with w.
func (a *admission) queueLocked(w wait.Waiter) *queuedCall {
	t := &queuedCall{admission: a, waiter: w, parker: w.Parker()}
	t.queued = a.queue.PushBack(t)
	return t
}

// admit takes a place before the call arrives, and waits for it until ctx is done or new calls
// are refused. It implements [link.Terms]'s Admit.
func (a *admission) admit(ctx context.Context) error {
	w := wait.TaskOr(ctx, &a.parkers) // without mu: ctx may be a user's type
	a.mu.Lock()
	if a.fullLocked() {
		t := a.queueLocked(w)
		a.mu.Unlock()
		return a.wait(ctx, t)
	}
	defer a.mu.Unlock()
	return a.takeLocked()
}

// fullLocked reports whether a call has to wait for a place.
func (a *admission) fullLocked() bool {
	return a.limit > 0 && a.taken >= a.limit && a.refusal == nil
}

// takeLocked takes a free place.
func (a *admission) takeLocked() error {
	if a.refusal == nil {
		a.taken++
	}
	return a.refusal
}

// enterLocked makes c a running call, or queues it for a place, or returns why c is refused.
func (a *admission) enterLocked(c *serverCall) (*queuedCall, error) {
	if a.ahead {
		return nil, a.beginLocked(c)
	}
	if a.fullLocked() {
		a.undecided++
		return a.queueLocked(&a.parkers), nil
	}
	if err := a.takeLocked(); err != nil {
		return nil, err
	}
	return nil, a.beginLocked(c)
}

// beginLocked starts to count c, which has a place, as running. If it returns an error, it has
// given the place back.
func (a *admission) beginLocked(c *serverCall) error {
	if a.refusal != nil {
		a.taken-- // nobody waits
		return a.refusal
	}
	if a.counter != nil {
		a.counter.Begin()
	}
	c.index = int32(len(a.running))
	a.running = append(a.running, c)
	return nil
}

// endLocked gives back the place of c, which has run. It returns the Parker to unpark, preferably
// without mu; nil for none.
func (a *admission) endLocked(c *serverCall) wait.Parker {
	if a.counter != nil {
		a.counter.End()
	}
	last := len(a.running) - 1
	a.running[c.index] = a.running[last]
	a.running[c.index].index = c.index
	a.running[last] = nil
	a.running = a.running[:last]
	next := a.giveBackLocked()
	a.checkIdleLocked()
	return next
}

// giveBackLocked gives back a place. It returns the Parker to unpark, nil for none.
func (a *admission) giveBackLocked() wait.Parker {
	first := a.queue.Front()
	if first == nil {
		a.taken--
		return nil
	}
	t := a.queue.Remove(first).(*queuedCall)
	t.decided = true
	return t.parker
}

// giveBack gives back the place of a call that does not run.
func (a *admission) giveBack() {
	a.mu.Lock()
	next := a.giveBackLocked()
	a.mu.Unlock()
	wait.Unpark(next)
}

// giveBackAhead gives back the place that a caller has taken for a call that has arrived and does
// not run.
func (a *admission) giveBackAhead() {
	if a.ahead {
		a.giveBack()
	}
}

// wait waits until the queued t has a place. It returns t.refused, which is nil if t has a place,
// or ctx's error if t gives up.
func (a *admission) wait(ctx context.Context, t *queuedCall) error {
	defer t.waiter.Release(t.parker)
	stop := wait.OnAbandon(t.waiter, t)
	err := t.parker.Park(ctx)
	stop()
	if err == nil {
		return t.refused
	}
	if t.giveUp() {
		_ = t.parker.Park(context.Background()) // the token is on its way
	}
	return link.ContextEnd(err)
}

// giveUp removes t from the queue, or gives back the place that it has got. It reports whether t was
// decided before.
func (t *queuedCall) giveUp() (decided bool) {
	a := t.admission
	a.mu.Lock()
	var next wait.Parker
	switch decided = t.decided; {
	case !decided:
		a.queue.Remove(t.queued)
	case t.refused == nil:
		next = a.giveBackLocked()
	}
	a.mu.Unlock()
	wait.Unpark(next)
	return decided
}

// Abandoned implements [wait.Abandoned].
func (t *queuedCall) Abandoned() { t.giveUp() }

// decide records that a call that enterLocked has queued runs, has ended or knows that it is
// refused.
func (a *admission) decide() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.undecided--
	a.checkIdleLocked()
}

// refuseLocked refuses the calls that wait and new ones for reason. Only the first reason counts.
func (a *admission) refuseLocked(reason error) {
	if a.refusal == nil {
		a.refusal = reason
		for a.queue.Len() > 0 {
			t := a.queue.Remove(a.queue.Front()).(*queuedCall)
			t.decided, t.refused = true, reason
			t.parker.Unpark()
		}
	}
	a.checkIdleLocked()
}

// checkIdleLocked calls onIdle, once, when new calls are refused and no call runs or is undecided.
func (a *admission) checkIdleLocked() {
	if a.refusal != nil && len(a.running) == 0 && a.undecided == 0 && !a.isIdle {
		a.isIdle = true
		a.onIdle()
	}
}
