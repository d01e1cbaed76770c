package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhoResumesATaskDoesNotRunIt checks that resume of Await returns without running the
// task, because its caller may hold a lock that the task needs.
func TestWhoResumesATaskDoesNotRunIt(t *testing.T) {
	eachKind(t, func(t *testing.T, newLoop func() *Loop) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop()
			var resume func(int, error)
			must(t, l, func(ctx context.Context) {
				_, _ = Await(ctx, func(r func(int, error)) { resume = r })
				time.Sleep(time.Second)
			})
			synctest.Wait()
			began := time.Now()
			resume(0, nil)
			if d := time.Since(began); d != 0 {
				t.Errorf("it takes %v to resume a task", d)
			}
			closed(t, l)
		})
	})
}
