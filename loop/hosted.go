package loop

import "fmt"

// NewHosted returns a loop whose tasks run on another event loop: that of an embedded
// interpreter, say, or of a user interface. submit makes the host call a function,
// some time and on a goroutine of its choice: always the same if one is bound to its
// thread. submit must neither call it itself nor wait, as locks may be held. No more than
// one function is with the host at a time, and each gives a few tasks their turns.
// Between them the host does what else it has to do. What submit has taken has to be
// called, also when the host ends.
//
// An error of submit says that the host takes no more. Then the loop takes no more
// either: handlers' calls end with Unavailable, contexts of tasks are cancelled, and
// tasks that have begun unwind on a goroutine of the loop, still one at a time. If the
// host's goroutine was bound to its thread they cannot, and stay as they are. Functions
// given to Go and Post that have not begun are dropped, as they may need the host. So
// close the loop before its host, or wait for the host's end as well as for a
// function's result. A loop learns of its host's end when it next has something for it
// to do.
//
// Tasks are coroutines: what a task has on its stack when it waits stays there while
// others run. It must not wait in what the host's interpreter has called, unless that
// can be suspended there. The options [Coroutines] and [Pinned] are not for hosted
// loops; NewHosted panics.
func NewHosted(submit func(func()) error, opts ...Option) *Loop {
	l := newLoop()
	h := &hosted{submit: submit}
	h.driven = driven{loop: l, call: h.callHost, checksBound: true}
	l.engine = h
	for _, o := range opts {
		o(l)
	}
	if l.engine != engine(h) {
		panic("loop: NewHosted takes neither Coroutines nor Pinned, because its host runs the tasks; leave the option out")
	}
	return l
}

// A hosted is driven by functions that another loop calls.
type hosted struct {
	driven
	submit func(func()) error
}

// maxAtATime is how many turns a host gives before it sees to what else it has to
// do.
const maxAtATime = 32

func (h *hosted) callHost() error {
	if err := h.submit(h.runOnHost); err != nil {
		return h.runWithoutHost(err)
	}
	return nil
}

// runOnHost is what the host calls.
func (h *hosted) runOnHost() {
	if h.drive(maxAtATime) {
		_ = h.call()
	}
}

// runWithoutHost goes on without the host, so that tasks can end.
func (h *hosted) runWithoutHost(why error) error {
	l := h.loop
	why = fmt.Errorf("%w: the host takes no more functions: %w", ErrClosed, why)
	l.mu.Lock()
	h.hostGone = true
	h.call = h.callOwn // the driver alone calls it, or who sets driving
	l.refuseTasks(why)
	l.mu.Unlock()
	l.workers.Go(func() { // whoever made a task ready may hold locks that calls end with
		l.cancelTasks(why)
		h.drive(0)
	})
	return why
}
