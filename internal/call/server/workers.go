package server

import (
	"context"
	"runtime/pprof"
	"slices"
	"time"

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
