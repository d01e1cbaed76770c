package leak

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// leave is set in a child process whose tests leave a goroutine behind.
const leave = "NEARCALL_LEAVE_A_GOROUTINE"

func TestMain(m *testing.M) { Main(m) }

func forgotten(release <-chan struct{}) { <-release }

func TestFindSeesAGoroutineAndItsEnd(t *testing.T) {
	if found := Find(); len(found) > 0 {
		t.Fatalf("before any was started, Find returned:\n%s", strings.Join(found, "\n\n"))
	}
	release := make(chan struct{})
	go forgotten(release)

	found := Find()
	if len(found) != 1 || !strings.Contains(found[0], t.Name()) {
		t.Errorf("Find returned %d stacks, want the one that this test started:\n%s", len(found), strings.Join(found, "\n\n"))
	}

	close(release)
	if left := await(nil, patience); len(left) > 0 {
		t.Errorf("after its end:\n%s", strings.Join(left, "\n\n"))
	}
}

func TestWhatRanBeforeIsNoLeak(t *testing.T) {
	release := make(chan struct{})
	go forgotten(release)
	before := ids(stacks())
	if left := await(before, 0); len(left) > 0 {
		t.Errorf("a goroutine from before was reported:\n%s", strings.Join(left, "\n\n"))
	}
	close(release)
	await(nil, patience)
}

func TestAwaitGivesSlowGoroutinesTime(t *testing.T) {
	release := make(chan struct{})
	go forgotten(release)
	time.AfterFunc(20*time.Millisecond, func() { close(release) })
	if left := await(nil, patience); len(left) > 0 {
		t.Errorf("a goroutine on its way out was reported:\n%s", strings.Join(left, "\n\n"))
	}
}

func TestLeaveAGoroutine(t *testing.T) {
	if os.Getenv(leave) == "" {
		t.Skip("only in the child process of TestMainFails")
	}
	go forgotten(nil)
}

func TestMainFails(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a child that waits for its leak")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeaveAGoroutine$", "-test.count=1")
	cmd.Env = append(os.Environ(), leave+"=1")
	out, err := cmd.CombinedOutput()
	if _, ok := err.(*exec.ExitError); !ok {
		t.Fatalf("the child ended with %v, want a failure; it printed:\n%s", err, out)
	}
	if !strings.Contains(string(out), "left behind") || !strings.Contains(string(out), "leak.forgotten") {
		t.Errorf("the child does not show what leaked:\n%s", out)
	}
}
