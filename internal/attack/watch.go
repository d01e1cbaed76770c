//go:build linux

package main

import (
	"strconv"
	"sync"
	"time"
)

// A watch follows what a process has, and keeps the most that it saw. It kills
// the process where its memory goes beyond a limit.
type watch struct {
	c     *child
	limit int64 // in bytes
	files bool  // count the process's memory files, also pages that it has not touched
	stop  chan struct{}
	ended chan struct{}

	mu     sync.Mutex
	shared int64 // bytes of memory files
	peak   footprint
	killed bool
}

// The memory is looked at often, as an attack makes it grow by a gigabyte in a
// second; counting descriptors takes longer.
const (
	lookEvery  = 5 * time.Millisecond
	countEvery = 100 * time.Millisecond
)

func watchOver(c *child, limit int64, files bool) *watch {
	w := &watch{c: c, limit: limit, files: files, stop: make(chan struct{}), ended: make(chan struct{})}
	w.count()
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.ended)
	look, count := time.NewTicker(lookEvery), time.NewTicker(countEvery)
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

// look reports whether the process still runs.
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
	if memory > w.limit {
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

// most returns the most that was seen so far, and whether the process was killed
// for it.
func (w *watch) most() (peak footprint, killed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peak, w.killed
}

func (w *watch) end() {
	close(w.stop)
	<-w.ended
}
