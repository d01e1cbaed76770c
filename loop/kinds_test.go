package loop

import (
	"context"
	"errors"
	"runtime"
	"testing"
)

// A kind is a way to run tasks.
type kind struct {
	name  string
	make  func() *Loop
	bound bool // tasks run on a goroutine that is bound to its thread
}

var kinds = []kind{
	{"baton", func() *Loop { return New() }, false},
	{"coroutines", func() *Loop { return New(Coroutines()) }, false},
	{"pinned", func() *Loop { return driveIt(New(Pinned()), false) }, false},
	{"pinned to a thread", func() *Loop { return driveIt(New(Pinned()), true) }, true},
	{"hosted", func() *Loop { return newHost(false).loop }, false},
	{"hosted by a thread", func() *Loop { return newHost(true).loop }, true},
}

// eachKind runs f as a subtest for each kind.
func eachKind(t *testing.T, f func(t *testing.T, newLoop func() *Loop)) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { f(t, k.make) })
	}
}

// driveIt starts a goroutine that runs a pinned loop until it is closed.
func driveIt(l *Loop, bound bool) *Loop {
	go func() {
		if bound {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		if err := l.Run(context.Background()); err != nil {
			panic(err)
		}
	}()
	return l
}

// A host is an event loop for a hosted loop: a goroutine that calls the submitted
// functions until the hosted loop has ended, or gone is closed.
type host struct {
	loop  *Loop
	calls chan func()
	gone  chan struct{} // the test closes it to end the host
	over  chan struct{}
}

var errHostGone = errors.New("the host is gone")

func newHost(bound bool) *host {
	h := &host{calls: make(chan func(), 1), gone: make(chan struct{}), over: make(chan struct{})}
	h.loop = NewHosted(func(f func()) error {
		select {
		case <-h.gone:
			return errHostGone
		default:
		}
		h.calls <- f // does not block: at most one is pending
		return nil
	})
	go func() {
		defer close(h.over)
		if bound {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		for {
			select {
			case f := <-h.calls:
				f()
			case <-h.gone:
				return
			case <-h.loop.empty:
				return
			}
		}
	}()
	return h
}
