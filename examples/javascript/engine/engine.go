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

	// stopped is set before anything runs that the host does not run. Whoever finds
	// it set leaves the interpreter alone: it may be in use elsewhere.
	stopped atomic.Bool

	// gone is closed when Stop is over. The loop has lost its host then, and drops the
	// tasks that have not begun: whoever waits for what a task returns waits for this, too.
	gone chan struct{}

	// The rest is the tasks' and the script's.
	vm       *goja.Runtime
	own      own
	rejected map[*goja.Promise]struct{} // that nobody has looked at yet
}

// maxCalls is how deep a script's calls go before they fail.
const maxCalls = 4096

// New returns an engine that runs. report is told, on the script's thread, of errors
// that nobody else is told of: a promise that is rejected without anybody to see it,
// an exception in a timer. A nil report logs them.
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

// noFiles keeps scripts from files of the machine that they run on.
func noFiles(string) ([]byte, error) { return nil, require.ModuleFileDoesNotExistError }

var errStopped = errors.New("the script engine is stopped")

func (e *Engine) submit(f func()) error {
	if e.events.RunOnLoop(func(*goja.Runtime) { f() }) {
		return nil
	}
	e.stopped.Store(true)
	return errStopped
}

// Loop returns the loop whose tasks run on the script's thread, one at a time. Do not
// close it: [Engine.Close] does.
func (e *Engine) Loop() *loop.Loop { return e.loop }

// alive is what a task asks when it begins, and after each wait, before it touches the
// interpreter.
func (e *Engine) alive() error {
	if e.stopped.Load() {
		return status.Error(codes.Unavailable, errStopped.Error())
	}
	return nil
}

// Close waits until scripts and handlers have ended, or ctx is done, whose error it
// returns then. In either case it stops the engine. Scripts make no calls any more
// once it was called; so let servers stop gracefully before.
func (e *Engine) Close(ctx context.Context) error {
	err := e.loop.Close(ctx)
	e.Stop()
	return err
}

// Stop stops the engine whatever it does: the script goes on no more, and calls that
// it was to answer end with Unavailable.
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
		_ = e.loop.Post(func() {}) // a loop learns that its host is gone when it needs it next
		close(e.gone)
	})
}

// interrupted interrupts the script and reports whether done was closed within d. One
// interruption ends one function, and more may be due.
func (e *Engine) interrupted(done <-chan struct{}, d time.Duration) bool {
	e.vm.Interrupt(errStopped)
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// onLoop has fn called on the script's thread, and returns its error.
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
