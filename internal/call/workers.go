package call

import "sync"

// maxIdleWorkers bounds the goroutines that a server keeps for later calls.
const maxIdleWorkers = 256

// workers runs handlers on goroutines that are kept for the next call: a fresh
// goroutine costs more, most of it growing its stack. The last to become idle
// is the first to be used. They belong to one server and end with it.
type workers struct {
	mu     sync.Mutex
	idle   []chan *serverCall
	closed bool
}

// run has c run by a worker, and returns at once.
func (w *workers) run(c *serverCall) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		next <- c // has room: an idle worker waits for exactly one
		return
	}
	w.mu.Unlock()
	go w.work(c)
}

func (w *workers) work(c *serverCall) {
	tasks := make(chan *serverCall, 1)
	for {
		c.run()
		c = nil
		w.mu.Lock()
		if w.closed || len(w.idle) >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, tasks)
		w.mu.Unlock()
		var more bool
		if c, more = <-tasks; !more {
			return
		}
	}
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
