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
func (h *handlers) Start(hand bool, run func(wait.Task), lost func(error)) error {
	return (*Loop)(h).start(hand, func(t *task) { run(t) }, lost)
}

// Hands implements [wait.Loop].
func (h *handlers) Hands() bool {
	d, ok := h.engine.(*driven)
	return ok && d.hands
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
	if t := l.holder; t != nil && t.isCaller() {
		l.mu.Unlock()
		run(t)
		return true
	}
	if l.refusal != nil {
		l.mu.Unlock()
		return false
	}
	return l.engine.here(&task{loop: l, run: func(t *task) { run(t) }})
}
