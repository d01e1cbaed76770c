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

// Here implements [wait.Loop].
func (h *handlers) Here(run func(wait.Task)) error {
	l := (*Loop)(h)
	l.mu.Lock()
	if t := l.holder; t != nil && t.Current() {
		l.mu.Unlock()
		run(t)
		return nil
	}
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.live++
	t := &task{loop: l, run: func(t *task) { run(t) }, turn: make(chan struct{}, 1)}
	own := l.enqueue(t)
	l.mu.Unlock()
	if own == nil {
		<-t.turn
	}
	l.run(t)
	l.mu.Lock()
	l.end(t)
	next := l.handOver()
	l.mu.Unlock()
	l.resume(next)
	return nil
}
