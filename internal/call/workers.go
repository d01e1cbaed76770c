package call

import (
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// maxIdleWorkers is the limit of idle goroutines that a server keeps for later calls.
const maxIdleWorkers = 256

// A worker without a call ends after idleTime, or at most twice that time.
const idleTime = time.Second

// workers runs one server's handlers on goroutines that are reused. New goroutines cost
// more, mostly for growing their stacks. The worker that became idle last is used first.
// The workers end with the server, and before that when they have been idle for some time.
//
// Calls queue for the workers, and a worker that has run one takes the next. So when many calls
// arrive, few workers have to be woken.
//
// Invariants, under mu:
//   - While calls are queued, one worker is coming: it was woken or started, and has not looked at
//     the queue yet. A worker that takes a call and leaves others in the queue first makes another
//     worker come, so no call waits for the handler of another call.
//   - At most one worker is coming.
//   - While a worker is idle, the timer that ends idle workers is set. When the timer fires, it
//     ends the workers that were idle since it was set. idle is a stack, so these are the entries
//     below its least length in that time. So a call only has to update that length.
type workers struct {
	// mu also guards the running calls of the server's connections, so that a call can be added to
	// them and to the queue under one lock.
	mu     sync.Mutex
	idle   []chan struct{} // one for each idle worker, with room for the signal that wakes it
	unused int             // the least length of idle since the timer was set
	timer  *time.Timer     // nil before the first worker became idle
	timed  bool            // the timer is set
	queue  callQueue
	coming bool
	inline inlineCalls
	closed bool
}

// A callQueue has calls in the order in which they arrived.
type callQueue struct{ first, last *serverCall }

func (q *callQueue) push(c *serverCall) {
	if q.first == nil {
		q.first = c
	} else {
		q.last.next = c
	}
	q.last = c
}

// pop removes the first call and returns it, or nil if there is none.
func (q *callQueue) pop() *serverCall {
	c := q.first
	if c == nil {
		return nil
	}
	q.first, c.next = c.next, nil
	if q.first == nil {
		q.last = nil // otherwise the call and its messages would stay in memory until the next call
	}
	return c
}

// start runs c. If l is not nil, c runs inline on l. Otherwise c runs as a task
// if its method has a loop, and on a worker if not. start returns at once, with two exceptions. If
// the loop lets callers run tasks, start returns when the task waits or ends. If the session reads
// each call on another goroutine, start waits for a place. If it returns an error, c does not run.
func (w *workers) start(c *serverCall, l link.InlineStream) error {
	a := &c.conn.admission
	w.mu.Lock()
	t, err := a.enterLocked(c)
	switch {
	case err != nil:
		w.mu.Unlock()
		return err
	case t == nil:
		return w.dispatch(c, l)
	}
	w.mu.Unlock()
	if c.conn.peer.Parallel {
		defer a.decide()
		return w.startWith(t, c, l)
	}
	go func() {
		defer a.decide()
		if err := w.startWith(t, c, nil); err != nil {
			c.abort(err)
			c.cancel(context.Canceled)
		}
	}()
	return nil
}

// startWith is start for a call that waits as t. It ends c if c's context ends before
// c has a place.
func (w *workers) startWith(t *queuedCall, c *serverCall, l link.InlineStream) error {
	a := &c.conn.admission
	err := a.wait(c, t)
	switch {
	case err == nil:
		w.mu.Lock()
		if err = a.beginLocked(c); err == nil {
			return w.dispatch(c, l)
		}
		w.mu.Unlock()
		return err
	case t.refused != nil:
		return t.refused
	}
	c.finish(status.FromContextError(c.Err()))
	return nil
}

// dispatch passes c, which is among the running calls, to the goroutine that runs it: see start.
// Called with mu held, which it releases.
func (w *workers) dispatch(c *serverCall, l link.InlineStream) error {
	switch {
	case l != nil:
		w.mu.Unlock()
		l.RunInline((*inlineHandler)(c), c.method.handlerTime.expected())
		return nil
	case c.method.loop != nil:
		w.mu.Unlock()
		return w.startOnLoop(c)
	}
	w.queue.push(c)
	w.wake()
	return nil
}

// wake wakes or starts a worker if calls are queued and no worker is coming. Called with mu held,
// which it releases.
func (w *workers) wake() {
	if w.queue.first == nil || w.coming {
		w.mu.Unlock()
		return
	}
	w.coming = true
	n := len(w.idle)
	if n == 0 {
		w.mu.Unlock()
		go w.work()
		return
	}
	next := w.idle[n-1]
	w.idle = w.idle[:n-1]
	w.unused = min(w.unused, n-1)
	w.mu.Unlock()
	next <- struct{}{} // does not block: an idle worker's channel is empty
}

// work is the goroutine of a worker. It is woken for queued calls.
func (w *workers) work() {
	// A new goroutine inherits the labels of its creator, which in process is a caller.
	pprof.SetGoroutineLabels(context.Background())
	wake := make(chan struct{}, 1)
	for woken := true; woken; _, woken = <-wake { // woken is false once wake was closed
		w.mu.Lock()
		w.coming = false
		w.runQueued()
		keep := !w.closed && len(w.idle) < maxIdleWorkers
		if keep {
			w.idle = append(w.idle, wake)
			if !w.timed {
				w.setTimerLocked()
			}
		}
		w.mu.Unlock()
		if !keep {
			return
		}
	}
}

// setTimerLocked sets the timer that ends idle workers.
func (w *workers) setTimerLocked() {
	w.timed, w.unused = true, len(w.idle)
	if w.timer == nil {
		w.timer = time.AfterFunc(idleTime, w.endUnused)
	} else {
		w.timer.Reset(idleTime)
	}
}

// endUnused ends the workers that have been idle since the timer was set.
func (w *workers) endUnused() {
	w.mu.Lock()
	unused := slices.Clone(w.idle[:min(w.unused, len(w.idle))]) // after close there are none
	w.idle = slices.Delete(w.idle, 0, len(unused))
	if w.timed = false; len(w.idle) > 0 {
		w.setTimerLocked()
	}
	w.mu.Unlock()
	for _, wake := range unused {
		close(wake)
	}
}

// runQueued runs calls until none is queued. Called with mu held; mu is released in between.
func (w *workers) runQueued() {
	for c := w.queue.pop(); c != nil; c = w.queue.pop() {
		w.wake()
		c.runTimed()
		w.mu.Lock()
		if next := w.endLocked(c); next != nil {
			w.mu.Unlock()
			next.Unpark()
			w.mu.Lock()
		}
	}
}

// runOnCaller runs c on the calling goroutine, which belongs to c's caller. If it returns an
// error, c does not run.
func (w *workers) runOnCaller(c *serverCall) error {
	w.mu.Lock()
	_, err := c.conn.admission.enterLocked(c) // never queued: the session is in process
	w.mu.Unlock()
	switch {
	case err != nil:
		return err
	case c.method.loop != nil:
		c.onCaller = true
		if c.method.loop.RunNow((*loopJob)(c)) {
			return nil
		}
		c.onCaller = false
		c.inline = c.method.runsOnCaller
		return w.startOnLoop(c)
	}
	c.onCaller = true
	c.run()
	w.finished(c)
	return nil
}

// A loopJob is a call that runs as a loop's task. It implements [wait.Job].
type loopJob serverCall

func (j *loopJob) Run() {
	c := (*serverCall)(j)
	if c.carried != nil {
		c.carried.transportStream.SetWaiter(c.method.loop)
	}
	c.run()
	c.conn.server.workers.finished(c)
}

// Drop implements [wait.Job]. Cancelled has ended the call, so Run does not run its handler.
func (j *loopJob) Drop() { j.Run() }

// Leave implements [wait.Job]. Cancelled has ended the call. Its handler waits forever.
func (j *loopJob) Leave() { j.conn.server.workers.finished((*serverCall)(j)) }

func (j *loopJob) Cancelled(why error) {
	c := (*serverCall)(j)
	c.abort(fmt.Errorf("the method %s runs on a loop that runs no more: %v", c.method.name, why))
}

// startOnLoop runs c, which is among the running calls, as a task of its method's loop. If
// it returns an error, it has removed c, and c does not run.
func (w *workers) startOnLoop(c *serverCall) error {
	// In process this is the caller's goroutine, which may run tasks. Otherwise it is
	// the session's reader, which must not.
	err := c.method.loop.Start(c.conn.peer.Local, (*loopJob)(c))
	if err == nil {
		return nil
	}
	w.finished(c)
	return refused("the method %s runs on a loop that takes no more tasks: %v", c.method.name, err)
}

// finished records that c has ended.
func (w *workers) finished(c *serverCall) {
	w.mu.Lock()
	next := w.endLocked(c)
	w.mu.Unlock()
	wait.Unpark(next)
}

// endLocked removes c, which has ended, from the running calls. It returns the Parker to unpark,
// nil for none.
func (w *workers) endLocked(c *serverCall) wait.Parker {
	delete(w.inline.seen, c)
	return c.conn.admission.endLocked(c)
}

// close ends the idle workers. Busy ones end after their handler has returned.
func (w *workers) close() {
	w.mu.Lock()
	idle := w.idle
	w.idle, w.closed = nil, true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.inline.end()
	w.mu.Unlock()
	for _, tasks := range idle {
		close(tasks)
	}
}
