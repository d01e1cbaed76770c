package leak

import (
	"strings"
	"testing"
	"time"
)

// Within fails the test, and dumps all stacks, if f takes longer than patience.
func Within(t testing.TB, patience time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("in %v it did not come about that %s:\n\n%s", patience, what, strings.Join(Find(), "\n\n"))
	}
}

// Eventually fails the test, and dumps all stacks, if f does not return true in ten seconds.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	if !Finally(t, what, f) {
		t.FailNow()
	}
}

// Finally is Eventually for cleanups and deferred calls. It returns false instead of ending the
// goroutine, which would discard a panic of the test.
func Finally(t testing.TB, what string, f func() bool) bool {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !f(); <-tick.C {
		if time.Since(begin) > 10*time.Second {
			t.Errorf("it did not come about that %s:\n\n%s", what, strings.Join(Find(), "\n\n"))
			return false
		}
	}
	return true
}
