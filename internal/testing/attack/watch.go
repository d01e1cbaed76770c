//go:build linux

package attack

import (
	"strconv"
	"sync"
	"time"
)

// A watch polls a process's footprint and keeps the peak. It kills the process if its
// memory exceeds killAt.
type watch struct {
	c     *child
	every time.Duration // between looks at the memory
	files bool          // also count pages of memfds that the process has not touched
	stop  chan struct{}
	ended chan struct{}

	mu     sync.Mutex
	shared int64 // bytes of memfds
	peak   footprint
	killed bool
}

// countEvery is how often descriptors are counted, which takes longer.
const countEvery = 100 * time.Millisecond

func watchOver(c *child, every time.Duration, files bool) *watch {
	w := &watch{c: c, every: every, files: files, stop: make(chan struct{}), ended: make(chan struct{})}
	w.count()
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.ended)
	look, count := time.NewTicker(w.every), time.NewTicker(countEvery)
	defer look.Stop()
	defer count.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.c.done:
			return
		case <-count.C:
			w.count()
		case <-look.C:
			if !w.look() {
				return
			}
		}
	}
}

// look updates the peak memory, and reports whether the process still runs.
func (w *watch) look() bool {
	f, err := memoryOf(w.c.pid())
	if err != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	memory := f.private() + max(f.touched, w.shared)
	w.peak.memory = max(w.peak.memory, memory)
	w.peak.touched = max(w.peak.touched, f.touched)
	w.peak.threads = max(w.peak.threads, f.threads)
	if memory > killAt {
		w.killed = true
		_ = w.c.cmd.Process.Kill()
		return false
	}
	return true
}

func (w *watch) count() {
	n := descriptorsOf(w.c.pid())
	var shared int64
	if w.files {
		files, _ := memoryFiles(strconv.Itoa(w.c.pid()))
		shared = sum(files)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shared = shared
	w.peak.descriptors = max(w.peak.descriptors, n)
}

// most returns the peak so far, and whether the process was killed for its memory.
func (w *watch) most() (peak footprint, killed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peak, w.killed
}

func (w *watch) end() {
	close(w.stop)
	<-w.ended
}
