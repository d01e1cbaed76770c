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
func (h *handlers) Start(hand bool, j wait.Job) error {
	if taken, err := (*Loop)(h).start(hand, j); !taken {
		return err
	}
	return nil // if it is lost, j learns of it
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
func (h *handlers) Here(j wait.Job) bool {
	l := (*Loop)(h)
	l.mu.Lock()
	if t := l.holder; t != nil && t.isCaller() {
		l.mu.Unlock()
		j.Run(t)
		return true
	}
	if l.refusal != nil {
		l.mu.Unlock()
		return false
	}
	return l.engine.here(j)
}
