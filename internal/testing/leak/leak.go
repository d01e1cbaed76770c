// Package leak fails a test binary that leaves goroutines behind. A package that starts
// goroutines has
//
//	func TestMain(m *testing.M) { leak.Main(m) }
package leak

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is how long goroutines may take to end after the tests. It is longer than a QUIC server
// waits for a client whose last packet was lost, which no one sends again.
const patience = 10 * time.Second

// known are goroutines that are not leaks.
var known = []string{
	"testing.(*M).",               // the main goroutine and its alarm
	"testing.tRunner(",            // a test that runs, a parent that waits for its subtests
	"testing.fRunner(",            // the same for fuzz tests
	"created by os/signal.",       // one per process, started by fuzzing
	"runtime/pprof.profileWriter", // go test -cpuprofile
	"runtime.ReadTrace",           // go test -trace
	"runtime.runFinalizers",       // the runtime's own, while they run user code
	"runtime.runCleanups",
}

// Main runs the tests and exits. If they pass but goroutines are left, it prints the stacks
// of those and fails.
func Main(m *testing.M) {
	before := ids(stacks())
	code := m.Run()
	if code == 0 {
		if leaked := await(before, patience); len(leaked) > 0 {
			fmt.Fprintf(os.Stderr, "FAIL: %d goroutines were left behind:\n\n%s\n",
				len(leaked), strings.Join(leaked, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// Find returns the stacks of the running goroutines, except the caller's, those of package
// testing and those of the runtime.
func Find() []string { return find(nil) }

// await polls until only goroutines in before are left, or until patience has passed, and
// returns the stacks of the others.
func await(before map[string]bool, patience time.Duration) []string {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		leaked := find(before)
		if len(leaked) == 0 || time.Now().After(deadline) {
			return leaked
		}
		time.Sleep(pause)
	}
}

func find(before map[string]bool) []string {
	var found []string
	for _, s := range stacks()[1:] { // the first is the caller's
		if !before[id(s)] && !isKnown(s) {
			found = append(found, s)
		}
	}
	return found
}

func isKnown(stack string) bool {
	for _, k := range known {
		if strings.Contains(stack, k) {
			return true
		}
	}
	return false
}

// stacks returns the stack of every goroutine, the caller's first.
func stacks() []string {
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			return strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")
		}
		buf = make([]byte, 2*len(buf))
	}
}

// id returns the start of a stack, such as "goroutine 7".
func id(stack string) string {
	head, _, _ := strings.Cut(stack, " [")
	return head
}

func ids(stacks []string) map[string]bool {
	m := make(map[string]bool, len(stacks))
	for _, s := range stacks {
		m[id(s)] = true
	}
	return m
}
