package server

import (
	"context"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// maxIdleWorkers is the limit of idle goroutines that a server keeps for later calls.
const maxIdleWorkers = 256

// A worker without a call ends after idleTime, or at most twice that time.
const idleTime = time.Second

// workers run a server's handlers on goroutines that are reused. New goroutines cost
// more, mostly for growing their stacks. The worker that became idle last is used first.
// The workers end with the server, and before that when they have been idle for some time.
//
// Calls queue for the workers, and a worker that has run one takes the next. So when many calls
// arrive, few workers have to be woken.
//
// Invariants, under the scheduler's mu, which guards all fields:
//   - While calls are queued, one worker is coming: it was woken or started, and has not looked at
//     the queue yet. A worker that takes a call and leaves others in the queue first makes another
//     worker come, so no call waits for the handler of another call.
//   - At most one worker is coming.
//   - While a worker is idle, the timer that ends idle workers is set. When the timer fires, it
//     ends the workers that were idle since it was set. idle is a stack, so these are the entries
//     below its least length in that time. So a call only has to update that length.
type workers struct {
	idle   []chan struct{} // one for each idle worker, with room for the signal that wakes it
	unused int             // the least length of idle since the timer was set
	timer  *time.Timer     // nil before the first worker became idle
	timed  bool            // the timer is set
	queue  callQueue
	coming bool
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

// A wakeUp wakes or starts a worker, or does nothing.
type wakeUp struct {
	idle  chan struct{} // of a worker to wake; nil for none
	start bool
}

func (u wakeUp) wake(s *scheduler) {
	switch {
	case u.start:
		go s.work()
	case u.idle != nil:
		u.idle <- struct{}{} // does not block: an idle worker's channel is empty
	}
}

// wakeLocked makes a worker come if calls are queued and none is coming. The caller must use the
// wakeUp after it has unlocked.
func (w *workers) wakeLocked() wakeUp {
	if w.queue.first == nil || w.coming {
		return wakeUp{}
	}
	w.coming = true
	n := len(w.idle)
	if n == 0 {
		return wakeUp{start: true}
	}
	next := w.idle[n-1]
	w.idle = w.idle[:n-1]
	w.unused = min(w.unused, n-1)
	return wakeUp{idle: next}
}

// work is the goroutine of a worker. It is woken for queued calls.
func (s *scheduler) work() {
	// A new goroutine inherits the labels of its creator, which in process is a caller.
	pprof.SetGoroutineLabels(context.Background())
	wake := make(chan struct{}, 1)
	for woken := true; woken; _, woken = <-wake { // woken is false once wake was closed
		c, stays := s.next(nil, wake)
		for ; c != nil; c, stays = s.next(c, wake) {
			c.runTimed()
		}
		if !stays {
			return
		}
	}
}

// next returns the next call of the worker that wake wakes. done is the call that the worker has
// run, nil if it was woken or is new. If no call is queued, the worker becomes idle, and stays until
// it is woken, or there are enough idle workers.
func (s *scheduler) next(done *serverCall, wake chan struct{}) (c *serverCall, stays bool) {
	w := &s.workers
	var freed wait.Parker
	var up wakeUp
	s.mu.Lock()
	if done == nil {
		w.coming = false
	} else {
		freed = s.endLocked(done)
	}
	if c = w.queue.pop(); c != nil {
		up = w.wakeLocked()
	} else if stays = !w.closed && len(w.idle) < maxIdleWorkers; stays {
		w.idle = append(w.idle, wake)
		s.setTimerLocked()
	}
	s.mu.Unlock()
	wait.Unpark(freed)
	up.wake(s)
	return c, stays
}

// setTimerLocked sets the timer that ends idle workers, if it is not set.
func (s *scheduler) setTimerLocked() {
	w := &s.workers
	if w.timed {
		return
	}
	w.timed, w.unused = true, len(w.idle)
	if w.timer == nil {
		w.timer = time.AfterFunc(idleTime, s.endUnused)
	} else {
		w.timer.Reset(idleTime)
	}
}

// endUnused ends the workers that have been idle since the timer was set.
func (s *scheduler) endUnused() {
	w := &s.workers
	s.mu.Lock()
	unused := slices.Clone(w.idle[:min(w.unused, len(w.idle))]) // after close there are none
	w.idle = slices.Delete(w.idle, 0, len(unused))
	if w.timed = false; len(w.idle) > 0 {
		s.setTimerLocked()
	}
	s.mu.Unlock()
	for _, wake := range unused {
		close(wake)
	}
}

// closeLocked makes w keep no workers, and returns the idle ones.
func (w *workers) closeLocked() []chan struct{} {
	idle := w.idle
	w.idle, w.closed = nil, true
	if w.timer != nil {
		w.timer.Stop()
	}
	return idle
}

// Inline handlers. A session can run a unary handler on the goroutine that called HandleStream, so
// that no worker has to be woken. If that goroutine reads for other calls too, it runs only
// handlers of quick methods. A timer finds the handlers that take longer and releases their
// goroutines: the session reads on with another one. Otherwise such a handler could wait for ever
// for a call that it delays.

// inlineCalls has the calls whose handlers run inline. A call is added when its handler begins:
// before that there is nothing to release. It is guarded by the scheduler's mu.
type inlineCalls struct {
	seen  map[*serverCall]bool // the calls, and whether a check has seen their handlers run
	timer *time.Timer          // nil before the first call
	runs  bool                 // the timer is set
	added bool                 // a call was added since the last check
	ended bool
}

// An inlineHandler is a call whose handler runs inline.
type inlineHandler serverCall

// Run implements [link.Runner].
func (l *inlineHandler) Run() time.Duration {
	c := (*serverCall)(l)
	s := &c.conn.server.scheduler
	s.mu.Lock()
	s.addInlineLocked(c)
	s.mu.Unlock()
	begun := time.Now()
	c.run()
	d := time.Since(begun)
	c.method.handlerTime.ran(d)
	s.finished(c)
	return d
}

// addInlineLocked adds c to the calls whose handlers run inline.
func (s *scheduler) addInlineLocked(c *serverCall) {
	t := &s.inline
	if t.seen == nil {
		t.seen = make(map[*serverCall]bool)
	}
	t.seen[c] = false
	t.added = true
	switch {
	case t.runs || t.ended:
		return
	case t.timer == nil:
		t.timer = time.AfterFunc(inlineCheckTime, s.checkInline)
	default:
		t.timer.Reset(inlineCheckTime)
	}
	t.runs = true
}

// endLocked stops the timer for good, because the server has stopped. The calls were
// aborted, and their sessions have ended.
func (t *inlineCalls) endLocked() {
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// checkInline releases the goroutines of handlers that were already running at the last check.
func (s *scheduler) checkInline() {
	var slow []*serverCall
	s.mu.Lock()
	t := &s.inline
	for c, seen := range t.seen {
		if seen {
			slow = append(slow, c)
			delete(t.seen, c)
		} else {
			t.seen[c] = true
		}
	}
	// Starting a timer costs more than letting it run.
	if t.runs, t.added = len(t.seen) > 0 || t.added, false; t.runs && !t.ended {
		t.timer.Reset(inlineCheckTime)
	}
	s.mu.Unlock()
	for _, c := range slow {
		c.method.handlerTime.ran(inlineCheckTime) // before the goroutine reads more calls of the method
		if r := c.carried; r.use() {
			r.transportStream.(link.InlineStream).Release()
			r.unuse()
		}
	}
}
