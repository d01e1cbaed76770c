package loop

import (
	"context"
	"testing"
	"time"
)

// TestAContextEndsNoLaterWait checks that a context which ends just as its wait does, does
// not end a later wait.
func TestAContextEndsNoLaterWait(t *testing.T) { eachKind(t, testAContextEndsNoLaterWait) }

func testAContextEndsNoLaterWait(t *testing.T, newLoop func() *Loop) {
	l := newLoop()
	must(t, l, func(ctx context.Context) {
		for range repeated(500) {
			short, cancel := context.WithCancel(ctx)
			_, _ = Await(short, func(resume func(int, error)) {
				go func() {
					go cancel()
					resume(0, nil)
				}()
			})
			const d = 50 * time.Microsecond
			began := time.Now()
			if err := Sleep(ctx, d); err != nil || time.Since(began) < d {
				t.Errorf("it ends after %v with %v", time.Since(began), err)
				return
			}
			cancel()
		}
	})
	closed(t, l)
}
