package loop

import (
	"bytes"
	"fmt"
	"runtime"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/durations"
)

// Watchdog makes the loop call report when a task runs for longer than limit without waiting. The
// arguments are how long it has run so far, and the stack trace of its goroutine in the format of
// runtime.Stack. There is at most one report per turn of a task. It comes when the task has run for
// 1 to 1.5 times limit. report runs on its own goroutine, so the task might have ended by then.
// Taking the trace stops the whole program for a moment. A nil report logs a warning with grpclog.
//
// Watchdog panics if limit is not positive.
func Watchdog(limit time.Duration, report func(held time.Duration, stack []byte)) Option {
	if limit <= 0 {
		panic(fmt.Sprintf("loop: watchdog limit must be positive, got %v", limit))
	}
	if report == nil {
		report = warn
	}
	return func(l *Loop) {
		l.watch = &watch{loop: l, limit: limit, report: report}
	}
}

func warn(held time.Duration, stack []byte) {
	grpclog.Component("loop").Warningf("a task has held its loop for %v without waiting:\n%s", held, stack)
}

// A watch checks a loop with a timer while a task has the turn.
type watch struct {
	loop   *Loop
	limit  time.Duration
	report func(time.Duration, []byte)

	// Guarded by loop.mu.
	timer     *time.Timer
	isRunning bool      // the timer is set
	turn      uint64    // Loop.turns at the last check
	since     time.Time // when a check first saw that turn
	reported  bool      // the turn was reported
}

// every returns the time between two checks.
func (w *watch) every() time.Duration { return durations.Recheck(w.limit / 4) }

// startLocked starts the timer if it does not run. It is called when a task gets the turn. mu is
// held.
func (w *watch) startLocked() {
	if w.isRunning {
		return
	}
	w.isRunning = true
	w.noteTurnLocked()
	if w.timer == nil {
		w.timer = time.AfterFunc(w.every(), w.tick)
	} else {
		w.timer.Reset(w.every())
	}
}

// noteTurnLocked starts to measure the current turn.
func (w *watch) noteTurnLocked() { w.turn, w.since, w.reported = w.loop.turns, time.Now(), false }

func (w *watch) tick() {
	l := w.loop
	l.mu.Lock()
	if l.holder == nil {
		w.isRunning = false
		l.mu.Unlock()
		return
	}
	held := time.Since(w.since)
	tells := l.turns == w.turn && !w.reported && held >= w.limit
	if l.turns != w.turn {
		w.noteTurnLocked()
	}
	w.reported = w.reported || tells
	number, turn := l.holder.number.Load(), w.turn
	w.timer.Reset(w.every())
	l.mu.Unlock()
	if !tells {
		return
	}
	stack := stackOf(number)
	l.mu.Lock()
	same := l.turns == turn
	l.mu.Unlock()
	if stack != nil && same {
		w.report(held, stack)
	}
}

// maxTraces bounds the buffer for the stack traces of all goroutines, in bytes.
const maxTraces = 64 << 20

// stackOf returns the stack trace of the goroutine with this number, or nil if there is none.
func stackOf(number uint64) []byte {
	for size := 256 << 10; ; size *= 4 {
		b := make([]byte, size)
		n := runtime.Stack(b, true)
		if n == size && size < maxTraces {
			continue
		}
		for trace := range bytes.SplitSeq(b[:n], []byte("\n\n")) {
			if numberOf(trace) == number {
				return bytes.Clone(trace)
			}
		}
		return nil
	}
}
