package loop

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// TestCloseWhileRunLeaves checks that a pinned loop without tasks can be closed while Run
// returns, though no Run follows.
func TestCloseWhileRunLeaves(t *testing.T) {
	for range 200 {
		l := New(Pinned())
		ctx, cancel := context.WithCancel(t.Context())
		ran, left := make(chan struct{}), make(chan error, 1)
		go func() { left <- l.Run(ctx) }()
		_ = l.Post(func() { close(ran) })
		<-ran
		go cancel()
		closed(t, l)
		if err := <-left; err != nil && err != context.Canceled {
			t.Fatal(err)
		}
		cancel()
	}
}

// TestWatchdogIsOfTasksThatRun checks that a watchdog reports nothing while no task has
// the turn, such as while the host does other work.
func TestWatchdogIsOfTasksThatRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan func(), 1)
		h := newHeld()
		l := NewHosted(func(f func()) error { asked <- f; return nil }, Watchdog(time.Second, h.report))
		over, turns := false, 0
		restless(t, l, &over, &turns)
		(<-asked)()
		time.Sleep(time.Hour)
		h.mu.Lock()
		if len(h.reports) > 0 {
			t.Errorf("nobody runs:\n%s", h.reports[0])
		}
		h.mu.Unlock()
		over = true
		go closed(t, l)
		for {
			select {
			case f := <-asked:
				f()
			case <-l.empty:
				return
			}
		}
	})
}

func TestAReportThatDoesNotReturnHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Watchdog(time.Second, func(time.Duration, []byte) { runtime.Goexit() }))
		_ = l.Post(func() { time.Sleep(time.Minute) })
		time.Sleep(time.Hour)
		closed(t, l)
	})
}
