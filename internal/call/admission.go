package call

import (
	"container/list"
	"context"
	"sync"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

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
	mu      *sync.Mutex         // the server's workers.mu
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
