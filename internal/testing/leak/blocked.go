package leak

import (
	"strings"
	"testing"
	"time"
)

// AwaitBlocked waits until a goroutine blocks inside function, such as
// "server.(*Server).GracefulStop(", in a state that runtime.Stack prints, such as "chan
// receive". The package is the last part of its path. It fails the test after ten seconds.
func AwaitBlocked(t testing.TB, state, function string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, s := range stacks()[1:] {
			if head, frames, _ := strings.Cut(s, "\n"); strings.Contains(head, "["+state) && strings.Contains(frames, "/"+function) {
				return
			}
		}
	}
	t.Fatalf("no goroutine blocks in %s, in the state %q", function, state)
}
