package looptest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/loop"
)

// A BoundHost runs the tasks of a loop on a goroutine that is locked to its thread. When the host is
// gone, the loop abandons the tasks that wait: they never continue.
type BoundHost struct {
	*loop.Loop
	idle chan struct{} // can be received from while the host runs nothing
	gone chan struct{}
}

// NewBoundHost starts a host and its loop.
func NewBoundHost() *BoundHost {
	h := &BoundHost{idle: make(chan struct{}), gone: make(chan struct{})}
	asked := make(chan func(), 1)
	h.Loop = loop.NewHosted(func(f func()) error {
		select {
		case <-h.gone:
			return errors.New("the host is gone")
		default:
			asked <- f
			return nil
		}
	})
	go func() {
		runtime.LockOSThread()
		for {
			select {
			case f := <-asked:
				f()
			case h.idle <- struct{}{}:
			}
		}
	}()
	return h
}

// Settle waits until the tasks that were ready wait, and the host runs nothing.
func (h *BoundHost) Settle() {
	done := make(chan struct{})
	_ = h.Post(func() { close(done) })
	<-done
	<-h.idle
}

// Leave ends the host. The loop learns that when it next asks the host to run a task.
func (h *BoundHost) Leave() { close(h.gone) }

// Tell lets the loop learn that the host has ended.
func (h *BoundHost) Tell() { _ = h.Post(func() {}) }

// Abandon runs f, which makes a loop abandon tasks, in a child process, because each such task is a
// goroutine that does not end. The calling test must do nothing else.
func Abandon(t *testing.T, f func()) {
	const child, well = "NEARCALL_ABANDON", "it ends well"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), well) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	f()
	if !t.Failed() {
		_, _ = os.Stdout.WriteString(well + "\n")
		os.Exit(0)
	}
}
