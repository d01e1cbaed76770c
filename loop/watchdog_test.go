package loop

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hog holds the loop until c is closed.
func hog(c <-chan struct{}) { <-c }

// spin holds the loop without blocking until over returns true.
func spin(over func() bool) {
	for n := 0; !over(); n++ {
	}
}

// held records the reports of a watchdog.
type held struct {
	mu      sync.Mutex
	reports []string
	times   []time.Duration
	at      []time.Time
	some    chan struct{}
}

func newHeld() *held { return &held{some: make(chan struct{}, 100)} }

func (h *held) report(d time.Duration, stack []byte) {
	h.mu.Lock()
	h.reports, h.times, h.at = append(h.reports, string(stack)), append(h.times, d), append(h.at, time.Now())
	h.mu.Unlock()
	h.some <- struct{}{}
}

// shows reports whether a report's stack trace contains the function.
func (h *held) shows(function string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.reports, func(r string) bool {
		return strings.HasPrefix(r, "goroutine ") && strings.Contains(r, "loop."+function+"(")
	})
}

// watchedKinds make a loop with an option, and return a function that ends it.
var watchedKinds = map[string]func(Option) (*Loop, func(t *testing.T)){
	"baton":      func(o Option) (*Loop, func(t *testing.T)) { return closing(New(o)) },
	"coroutines": func(o Option) (*Loop, func(t *testing.T)) { return closing(New(Coroutines(), o)) },
	"pinned":     func(o Option) (*Loop, func(t *testing.T)) { return closing(driveIt(New(Pinned(), o), false)) },
	"hosted": func(o Option) (*Loop, func(t *testing.T)) {
		host := New()
		l := NewHosted(host.Post, o)
		return l, func(t *testing.T) {
			closed(t, l)
			closed(t, host)
		}
	},
}

func closing(l *Loop) (*Loop, func(t *testing.T)) {
	return l, func(t *testing.T) { closed(t, l) }
}

func TestWatchdogShowsWhoHoldsTheLoop(t *testing.T) {
	const limit = 20 * time.Millisecond
	for name, newLoop := range watchedKinds {
		t.Run(name, func(t *testing.T) { showsWhoHolds(t, limit, newLoop) })
	}
}

func showsWhoHolds(t *testing.T, limit time.Duration, newLoop func(Option) (*Loop, func(t *testing.T))) {
	h := newHeld()
	l, end := newLoop(Watchdog(limit, h.report))
	release := make(chan struct{})
	must(t, l, func(ctx context.Context) {
		_ = Sleep(ctx, time.Millisecond) // others had turns before
		hog(release)
	})
	for range 100 {
		must(t, l, func(context.Context) {})
	}
	// On a busy machine the watchdog may report another turn first.
	for !h.shows("hog") {
		<-h.some
	}
	close(release)
	must(t, l, func(context.Context) { spin(func() bool { return h.shows("spin") }) })
	must(t, l, func(context.Context) {}) // so that the turn of spin has ended
	end(t)
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := slices.Min(h.times); d < limit {
		t.Errorf("a turn of %v is reported", d)
	}
}

func TestWatchdogReportsATurnOnceAndInTime(t *testing.T) {
	const limit = time.Second
	for name, newLoop := range watchedKinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld()
				l, end := newLoop(Watchdog(limit, h.report))
				var began [3]time.Time
				must(t, l, func(ctx context.Context) {
					for i := range began {
						_, _ = Await(ctx, func(resume func(int, error)) { time.AfterFunc(time.Minute, func() { resume(0, nil) }) })
						began[i] = time.Now()
						time.Sleep(time.Duration(i) * 20 * limit) // the first is short
					}
				})
				time.Sleep(time.Hour)
				end(t)
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.times) != 2 {
					t.Fatalf("it reports %d times:\n%s", len(h.times), strings.Join(h.reports, "\n\n"))
				}
				for i, at := range h.at {
					if d := at.Sub(began[i+1]); d < limit || d > limit*3/2 || h.times[i] < limit || h.times[i] > d {
						t.Errorf("what has lasted for %v is reported as %v", d, h.times[i])
					}
				}
			})
		})
	}
}

func TestWatchdogNeedsALimit(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a limit of 0 is taken")
		}
	}()
	Watchdog(0, nil)
}
