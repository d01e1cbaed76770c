// Package leak fails a test binary that leaves goroutines behind. A package
// that starts any has
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

// patience is how long goroutines that are on their way out may take.
const patience = 5 * time.Second

// known are goroutines that are nobody's leak: each has its reason.
var known = []string{
	"testing.(*M).",               // the main goroutine and its alarm
	"testing.tRunner(",            // a test that runs, a parent that waits for its subtests
	"testing.fRunner(",            // the same for fuzz tests
	"created by os/signal.",       // one a process, started by fuzzing
	"runtime/pprof.profileWriter", // go test -cpuprofile
	"runtime.ReadTrace",           // go test -trace
	"runtime.runFinalizers",       // the runtime's own, while they run user code
	"runtime.runCleanups",
}

// Main runs the tests and exits. A run that passed fails when goroutines are
// left over; their stacks are printed.
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

// Find returns the stacks of the goroutines that run now, except the caller's,
// those of the testing package and the runtime's own.
func Find() []string { return find(nil) }

// await looks until nothing is left but what runs in before, or until patience
// is at its end, and returns what is left then.
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
