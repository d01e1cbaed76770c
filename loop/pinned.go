package loop

import (
	"context"
	"errors"

	"github.com/nearcall/nearcall/internal/self"
	"github.com/nearcall/nearcall/internal/wait"
)

// Pinned runs all tasks on the goroutine that calls [Loop.Run], and so on its
// thread if it is bound to that: for what must not leave a thread, such as a user
// interface or a library in C. Tasks are coroutines.
//
// A caller's deadline or cancellation ends its wait at once. A task must not change
// whether it is bound to the thread beyond a wait: the runtime ends the process. A
// task that ends by runtime.Goexit where Run's goroutine is bound leaves a goroutine
// behind that never runs again.
func Pinned() Option {
	return func(l *Loop) {
		p := &pinned{called: make(chan struct{}, 1)}
		p.driven = driven{loop: l, call: p.callRunner}
		l.engine = p
	}
}

// A pinned is driven by Run.
type pinned struct {
	driven
	called chan struct{}

	// Guarded by loop.mu.
	runner    uintptr // the goroutine that has called Run; 0 before
	isRunning bool
}

var (
	errNotPinned = errors.New("loop: Run is only for loops made with the option Pinned; other loops run their tasks themselves")
	errRuns      = errors.New("loop: Run is already running")
	errRunner    = errors.New("loop: another goroutine called Run before, and tasks that have begun can go on only there; call Run on that one")
)

func (p *pinned) callRunner() error {
	select {
	case p.called <- struct{}{}:
	default: // Run comes in any case
	}
	return nil
}

// Run runs the tasks of a pinned loop until it is closed and all of them have ended.
// It returns ctx's error once ctx is done, with tasks perhaps in the middle of what
// they do: they go on when the same goroutine calls Run again. A task that does not
// wait holds up Run's return, too.
//
// Other loops have no use for it, and return an error, as does Run while it is called
// already, and when another goroutine has called it before.
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
		select { // before a turn that is due
		case <-ctx.Done():
			return wait.DoneErr(ctx)
		default:
		}
		select {
		case <-l.empty:
		case <-ctx.Done():
			return wait.DoneErr(ctx)
		case <-p.called:
			for p.drive(1) {
				if wait.Err(ctx) != nil {
					_ = p.callRunner()
					break
				}
			}
		}
	}
}

func (p *pinned) enter() error {
	l := p.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	id := self.ID()
	switch {
	case p.isRunning:
		return errRuns
	case p.runner != 0 && p.runner != id:
		return errRunner
	}
	p.runner, p.isRunning = id, true
	return nil
}

// leave keeps no coroutine for later tasks, as nobody may be there to end it. It does
// what Run was called for, if that is no more than to notice that.
func (p *pinned) leave() {
	l := p.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	p.endIdle()
	p.isRunning = false
	if l.ready.first == nil {
		p.driving = false
		l.signalIfEmpty()
	}
}
