package loop

import (
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/wait"
)

func init() {
	hook.Loop = func(l any) wait.Loop { return (*handlers)(l.(*Loop)) }
}

// handlers is a loop as it is to those who run handlers on it.
type handlers Loop

// Start implements [wait.Loop].
func (h *handlers) Start(run func(wait.Task)) error {
	return (*Loop)(h).start(func(t *task) { run(t) })
}

// Inside implements [wait.Loop].
func (h *handlers) Inside() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holder != nil && h.holder.isCaller()
}

// Here implements [wait.Loop].
func (h *handlers) Here(run func(wait.Task)) bool {
	l := (*Loop)(h)
	l.mu.Lock()
	if t := l.holder; t != nil || l.closed {
		l.mu.Unlock()
		if t == nil || !t.isCaller() {
			return false
		}
		run(t)
		return true
	}
	t := &task{loop: l, run: func(t *task) { run(t) }, turn: make(chan struct{}, 1), state: running}
	l.live++
	l.holder = t
	l.mu.Unlock()
	l.run(t)
	l.mu.Lock()
	l.end(t)
	next := l.handOver()
	l.mu.Unlock()
	l.resume(next)
	return true
}
