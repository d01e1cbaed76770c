package loop

import (
	"context"
	"errors"

	"github.com/nearcall/nearcall/internal/goid"
	"github.com/nearcall/nearcall/internal/wait"
)

// Pinned runs all tasks on the goroutine that calls [Loop.Run], and on its thread if
// that goroutine is bound to it. Use it for code that must stay on one thread, such as a
// user interface or a C library. Tasks are coroutines.
//
// A caller's deadline or cancellation ends its wait at once. A task that binds itself to the
// thread, or unbinds itself, must undo that before it waits, or the runtime ends the process. If
// Run's goroutine is bound to its thread, a task that ends by runtime.Goexit leaks a goroutine.
func Pinned() Option {
	return func(l *Loop) {
		p := &pinned{called: make(chan struct{}, 1)}
		p.driven = driven{loop: l, wakeDriver: p.wakeRun}
		l.engine = p
	}
}

// A pinned is a driven engine whose driver is Loop.Run.
type pinned struct {
	driven
	called chan struct{} // wakes Run; buffered for one

	// Guarded by loop.mu.
	runner    uintptr // ID of the first goroutine that called Run, or 0
	isRunning bool    // Run has not returned
}

var (
	errNotPinned = errors.New("loop: Run is only for loops made with the option Pinned; other loops run their tasks themselves")
	errRuns      = errors.New("loop: Run is already running")
	errRunner    = errors.New("loop: another goroutine called Run before, and tasks that have begun can go on only there; call Run on that one")
)

// wakeRun is the wakeDriver of a pinned loop.
func (p *pinned) wakeRun() error {
	select {
	case p.called <- struct{}{}:
	default: // a wake-up is pending already
	}
	return nil
}

// Run runs the tasks of a pinned loop until the loop is closed and all of them have ended. If ctx
// is done first, Run returns ctx's error after the current turn. Tasks that have not ended continue
// when the same goroutine calls Run again. A task that does not wait delays Run's return, too.
//
// Run returns an error at once if the loop is not pinned, if Run is running already, or
// if another goroutine has called it before.
func (l *Loop) Run(ctx context.Context) error {
	p, ok := l.engine.(*pinned)
	if !ok {
		return errNotPinned
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	for {
		select {
		case <-l.empty:
			return nil
		default:
		}
		if err := wait.Err(ctx); err != nil { // it takes precedence over a pending wake-up
			return err
		}
		select {
		case <-l.empty:
		case <-ctx.Done():
			return wait.DoneErr(ctx)
		case <-p.called:
			for p.drive(1) {
				if wait.Err(ctx) != nil {
					_ = p.wakeRun()
					break
				}
			}
		}
	}
}

// enter claims the loop for the calling goroutine's Run.
func (p *pinned) enter() error {
	l := p.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	id := goid.ID()
	switch {
	case p.isRunning:
		return errRuns
	case p.runner != 0 && p.runner != id:
		return errRunner
	}
	p.runner, p.isRunning = id, true
	return nil
}

// leave ends the idle coroutines, because Run might not be called again and only its goroutine
// may end them. If no task is ready, a pending wake-up was only for them, so leave unsets driving
// and lets Close return.
func (p *pinned) leave() {
	l := p.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	p.endIdleLocked()
	p.isRunning = false
	if l.ready.first == nil {
		p.driving = false
		l.signalIfEmptyLocked()
	}
}
