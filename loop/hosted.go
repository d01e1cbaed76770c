package loop

import "fmt"

// NewHosted returns a loop whose tasks run on another event loop, the host, such as that of an
// embedded interpreter or a user interface.
//
// submit passes a function to the host, which must call it once, later, and on a goroutine of its
// choice. If that goroutine is bound to its thread, the host must use the same goroutine each
// time. submit itself must not call the function and must not block, because locks may be held. At
// most one function is pending with the host at a time. Each runs a few tasks and returns, so that
// the host can do other work in between. The host must call every function that submit has
// accepted, even while it shuts down.
//
// An error from submit says that the host takes no more functions. The loop then refuses tasks:
// calls of its handlers end with Unavailable, contexts of tasks are cancelled, and tasks that have
// begun unwind on a goroutine of the loop, still one at a time. If the host's goroutine was bound
// to its thread, these tasks cannot unwind, and stay suspended. Their calls still end, but OnFinish
// and stats handlers might not learn of it. The loop drops functions that were given to Go or
// Post and have not begun, because they might need the host. So close the loop before its host.
// Otherwise, when you wait for the result of a function, also wait for the end of the host. A loop
// notices that its host has ended only when it next submits a function.
//
// Tasks are coroutines: the stack of a task that waits is kept while other tasks run. A task must
// not wait inside a function that the host's interpreter has called, if the interpreter cannot be
// suspended there. NewHosted panics if it is given the option [Coroutines] or [Pinned].
func NewHosted(submit func(func()) error, opts ...Option) *Loop {
	l := newLoop()
	h := &hosted{submit: submit}
	h.driven = driven{loop: l, wakeDriver: h.submitToHost, checksBound: true}
	l.engine = h
	for _, o := range opts {
		o(l)
	}
	if l.engine != engine(h) {
		panic("loop: NewHosted takes neither Coroutines nor Pinned, because its host runs the tasks; leave the option out")
	}
	return l
}

// A hosted is a driven engine whose driver is a function that the host calls.
type hosted struct {
	driven
	submit func(func()) error
}

// maxHostTurns is how many turns one function on the host gives before it returns to the host.
const maxHostTurns = 32

// submitToHost is wakeDriver while there is a host.
func (h *hosted) submitToHost() error {
	if err := h.submit(h.runOnHost); err != nil {
		return h.runWithoutHost(err)
	}
	return nil
}

// runOnHost is the function that the host calls.
func (h *hosted) runOnHost() {
	if h.drive(maxHostTurns) {
		_ = h.wakeDriver()
	}
}

// runWithoutHost starts a goroutine that cancels all tasks and drives instead of the host, so
// that they can end. It returns the reason for which later tasks are refused.
func (h *hosted) runWithoutHost(why error) error {
	l := h.loop
	why = fmt.Errorf("%w: the host takes no more functions: %w", ErrClosed, why)
	l.mu.Lock()
	h.hostGone = true
	h.wakeDriver = h.startOwnDriver // no race: the caller is the driver, or has just set driving
	l.refuseTasks(why)
	l.mu.Unlock()
	l.workers.Go(func() { // the caller may hold locks that Cancelled takes
		l.cancelTasks(why)
		h.drive(0)
	})
	return why
}
