package call

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
)

// maxIdleWorkers bounds the goroutines that a server keeps for later calls.
const maxIdleWorkers = 256

// workers runs handlers on goroutines that are kept for the next call: a fresh
// goroutine costs more, most of it growing its stack. The last to become idle
// is the first to be used. They belong to one server and end with it.
type workers struct {
	// mu also guards which calls of the server's connections run, so that a
	// call is noted and handed over in one step, and comes back in one.
	mu     sync.Mutex
	idle   []chan *serverCall
	closed bool
}

// start makes a worker, or a task of its loop, run c. It returns at once, or when
// the task waits where the loop has callers run it. Its error says why c must not
// run.
func (w *workers) start(c *serverCall) error {
	w.mu.Lock()
	if err := c.conn.add(c); err != nil {
		w.mu.Unlock()
		return err
	}
	if c.method.loop != nil {
		w.mu.Unlock()
		return w.startOnLoop(c)
	}
	n := len(w.idle)
	if n == 0 {
		w.mu.Unlock()
		go w.work(c)
		return nil
	}
	next := w.idle[n-1]
	w.idle = w.idle[:n-1]
	w.mu.Unlock()
	next <- c // has room: an idle worker waits for exactly one
	return nil
}

func (w *workers) work(c *serverCall) {
	// A goroutine begins with the labels of whoever starts it: a caller, in process.
	pprof.SetGoroutineLabels(context.Background())
	tasks := make(chan *serverCall, 1)
	for c != nil {
		c.run()
		w.mu.Lock()
		c.conn.remove(c)
		keep := !w.closed && len(w.idle) < maxIdleWorkers
		if keep {
			w.idle = append(w.idle, tasks)
		}
		w.mu.Unlock()
		c.conn.releaseQuota()
		c = nil
		if keep {
			c = <-tasks // nil: it was closed
		}
	}
}

// runOnCaller runs c on the caller's goroutine. Its error says why c must not run.
func (w *workers) runOnCaller(c *serverCall) error {
	w.mu.Lock()
	err := c.conn.add(c)
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

// A loopJob is a call that a loop runs.
type loopJob serverCall

// Run implements [wait.Job].
func (j *loopJob) Run() {
	c := (*serverCall)(j)
	if c.stream != nil {
		c.stream.carrier.SetWaiter(c.method.loop)
	}
	c.run()
	c.conn.server.workers.finished(c)
}

// Drop implements [wait.Job]. The call is over, and so its handler does not run.
func (j *loopJob) Drop() { j.Run() }

// Leave implements [wait.Job]. The call is over, and its handler is left where it waits.
func (j *loopJob) Leave() { j.conn.server.workers.finished((*serverCall)(j)) }

// Cancelled implements [wait.Job].
func (j *loopJob) Cancelled(why error) {
	c := (*serverCall)(j)
	c.abort(fmt.Errorf("the method %s runs on a loop that runs no more: %v", c.method.name, why))
}

// startOnLoop makes a loop run c, which was added, as a task. Its error says why it
// does not.
func (w *workers) startOnLoop(c *serverCall) error {
	// A caller of this process is on its own goroutine here, and a wire's reader is
	// not.
	err := c.method.loop.Start(c.conn.peer.Local, (*loopJob)(c))
	if err == nil {
		return nil
	}
	w.mu.Lock()
	c.conn.remove(c)
	w.mu.Unlock()
	return refused("the method %s runs on a loop that takes no more tasks: %v", c.method.name, err)
}

// finished notes that c runs no more.
func (w *workers) finished(c *serverCall) {
	w.mu.Lock()
	c.conn.remove(c)
	w.mu.Unlock()
	c.conn.releaseQuota()
}

// close ends the idle workers. Those that run a handler end after it.
func (w *workers) close() {
	w.mu.Lock()
	idle := w.idle
	w.idle, w.closed = nil, true
	w.mu.Unlock()
	for _, tasks := range idle {
		close(tasks)
	}
}
