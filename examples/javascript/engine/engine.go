package engine

import (
	"context"
	"errors"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dop251/goja"
	"github.com/dop251/goja_nodejs/eventloop"
	"github.com/dop251/goja_nodejs/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/loop"
)

// An Engine runs scripts, which share one global scope. Make one with [New]. Its
// methods may be called by any goroutine, but not by the engine's own tasks.
type Engine struct {
	events *eventloop.EventLoop
	loop   *loop.Loop
	report func(error)
	stop   sync.Once

	// stopped is set before tasks can run on a goroutine that is not the host's. A task that finds
	// it set must not use the interpreter, which another goroutine might be using.
	stopped atomic.Bool

	// gone is closed at the end of Stop. By then the loop has lost its host, and drops tasks that
	// have not begun. So a goroutine that waits for the result of a task must also wait for gone.
	gone chan struct{}

	// Only tasks and the script access the rest.
	vm       *goja.Runtime
	own      own
	rejected map[*goja.Promise]struct{} // without a handler so far
}

// maxCalls is the greatest depth of a script's call stack.
const maxCalls = 4096

// New returns a running engine. It calls report, on the script's thread, for errors that have
// no other receiver: a rejected promise without a handler, or an exception in a timer. A nil
// report logs them.
func New(report func(error)) *Engine {
	if report == nil {
		report = func(err error) { log.Printf("a script: %v", err) }
	}
	e := &Engine{report: report, gone: make(chan struct{}), rejected: make(map[*goja.Promise]struct{})}
	files := require.NewRegistry(require.WithLoader(noFiles))
	e.events = eventloop.NewEventLoop(eventloop.WithRegistry(files))
	e.events.Run(func(vm *goja.Runtime) {
		vm.SetMaxCallStackSize(maxCalls)
		vm.SetPromiseRejectionTracker(e.track)
		e.vm = vm
		e.own = prepare(vm)
	})
	e.events.Start()
	e.loop = loop.NewHosted(e.submit)
	return e
}

// noFiles prevents scripts from reading files of the machine.
func noFiles(string) ([]byte, error) { return nil, require.ModuleFileDoesNotExistError }

var errStopped = errors.New("the script engine is stopped")

func (e *Engine) submit(f func()) error {
	if e.events.RunOnLoop(func(*goja.Runtime) { f() }) {
		return nil
	}
	e.stopped.Store(true)
	return errStopped
}

// Loop returns the loop whose tasks run on the script's thread, one at a time. Do not close
// it; [Engine.Close] does.
func (e *Engine) Loop() *loop.Loop { return e.loop }

// alive returns an error if the engine is stopped. A task must call it when it begins and
// after each wait, before it uses the interpreter.
func (e *Engine) alive() error {
	if e.stopped.Load() {
		return status.Error(codes.Unavailable, errStopped.Error())
	}
	return nil
}

// Close waits until scripts and handlers have ended, and stops the engine. If ctx is done first,
// Close stops the engine and returns ctx's error. Scripts cannot make calls after Close was
// called, so stop servers gracefully before you call it.
func (e *Engine) Close(ctx context.Context) error {
	err := e.loop.Close(ctx)
	e.Stop()
	return err
}

// Stop stops the engine at once: it interrupts the script, and calls that the script has not
// answered end with Unavailable.
func (e *Engine) Stop() {
	e.stop.Do(func() {
		e.stopped.Store(true)
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.events.Terminate()
		}()
		for again := time.Millisecond; !e.interrupted(done, again); again *= 2 {
		}
		_ = e.loop.Post(func() {}) // makes the loop notice that its host is gone
		close(e.gone)
	})
}

// interrupted interrupts the script and reports whether done was closed within d. One
// interruption ends only one function, so the caller repeats it.
func (e *Engine) interrupted(done <-chan struct{}, d time.Duration) bool {
	e.vm.Interrupt(errStopped)
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// onLoop calls fn on the script's thread, and returns its error.
func (e *Engine) onLoop(fn func() error) error {
	result := make(chan error, 1)
	err := e.loop.Post(func() {
		if err := e.alive(); err != nil {
			result <- err
			return
		}
		result <- fn()
	})
	if err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-e.gone:
		return e.alive()
	}
}
