package loop

import (
	"bytes"
	"fmt"
	"runtime"
	"time"

	"google.golang.org/grpc/grpclog"
)

// Watchdog has report called when a task holds the loop for longer than limit: with
// for how long it has by then, and with the stack trace of its goroutine as
// runtime.Stack formats it. That is once for each time that the task has the turn,
// between limit and one and a half times that, on a goroutine of its own, which may come
// to it when the task is over. Finding the trace stops all of the program for a moment. A nil report logs a warning with
// grpclog.
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

// A watch looks at a loop now and then while that is busy.
type watch struct {
	loop   *Loop
	limit  time.Duration
	report func(time.Duration, []byte)

	// Guarded by loop.mu.
	timer     *time.Timer
	isRunning bool      // the timer is set
	turn      uint64    // that was there when it looked
	since     time.Time // when it first saw that
	reported  bool      // that it takes long
}

// checksPerLimit is how often a watch looks within its limit.
const checksPerLimit = 4

// start starts the watch, as somebody has the turn. mu is held.
func (w *watch) start() {
	if w.isRunning {
		return
	}
	w.isRunning = true
	w.noteTurn()
	if every := w.limit / checksPerLimit; w.timer == nil {
		w.timer = time.AfterFunc(every, w.tick)
	} else {
		w.timer.Reset(every)
	}
}

// noteTurn takes in whose turn it is. mu is held.
func (w *watch) noteTurn() { w.turn, w.since, w.reported = w.loop.turns, time.Now(), false }

func (w *watch) tick() {
	l := w.loop
	l.mu.Lock()
	if l.holder == nil {
		w.isRunning = false
		l.mu.Unlock()
		return
	}
	held := time.Since(w.since)
	tells := false
	switch {
	case l.turns != w.turn:
		w.noteTurn()
	case !w.reported && held >= w.limit:
		w.reported, tells = true, true
	}
	number, turn := l.holder.number.Load(), w.turn
	w.timer.Reset(w.limit / checksPerLimit)
	l.mu.Unlock()
	if !tells {
		return
	}
	stack := stackOf(number)
	l.mu.Lock()
	goesOn := l.turns != turn
	l.mu.Unlock()
	if stack != nil && !goesOn {
		w.report(held, stack)
	}
}

// stop looks no more. mu is held.
func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// maxTraces is how much of all stack traces is looked through, in bytes.
const maxTraces = 64 << 20

// stackOf returns the stack trace of the goroutine of this number; nil where it is
// not found.
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
