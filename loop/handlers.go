package loop

import (
	"runtime"

	"github.com/nearcall/nearcall/internal/wait"
)

// A handle leads servers and clients from a loop to its handlers. Programs do not see the
// methods of handlers.
type handle = wait.Handle

// handlers implements [wait.Loop], with which servers and clients run handlers and wait in them.
// It implements [wait.Waiter].
type handlers Loop

func (h *handlers) Start(handoff bool, j wait.Job) error {
	if taken, err := (*Loop)(h).start(handoff, j); !taken {
		return err
	}
	return nil // if the host has ended, j's methods report it
}

func (h *handlers) AllowsHandoff() bool {
	d, ok := h.engine.(*driven)
	return ok && d.drivenByCallers
}

func (h *handlers) Inside() bool { return (*Loop)(h).caller() != nil }

func (h *handlers) Parker() wait.Parker {
	if t := (*Loop)(h).caller(); t != nil {
		return t
	}
	return h.others.Parker()
}

func (h *handlers) Release(p wait.Parker) {
	if _, ok := p.(*task); !ok {
		h.others.Release(p)
	}
}

// OnAbandon implements [wait.Abandoner].
func (h *handlers) OnAbandon(d wait.Abandoned) (stop func()) {
	t := (*Loop)(h).caller()
	if t == nil || t.coroutine == nil || !t.coroutine.bound {
		return wait.NotAbandoned
	}
	t.onAbandon = append(t.onAbandon, d)
	return func() { t.onAbandon = t.onAbandon[:len(t.onAbandon)-1] }
}

// Yield gives each task that is ready a turn before the caller continues.
func (h *handlers) Yield() {
	t := (*Loop)(h).caller()
	if t == nil {
		runtime.Gosched()
		return
	}
	h.mu.Lock()
	if h.ready.first == nil {
		h.mu.Unlock()
		return
	}
	h.engine.yield(t)
}

func (h *handlers) RunNow(j wait.Job) bool {
	l := (*Loop)(h)
	l.mu.Lock()
	if !l.acceptsTasksLocked() {
		l.mu.Unlock()
		return false
	}
	if t := l.caller(); t != nil {
		t.within = append(t.within, j)
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			t.within = t.within[:len(t.within)-1]
			l.mu.Unlock()
		}()
		j.Run()
		return true
	}
	return l.engine.runNow(j)
}
