package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/child"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

// Serve serves target with opts, in a child process of the test binary that [Scenario.Child] has
// started. It returns when the child must exit.
func Serve(t *testing.T, target string, opts ...nearcall.ServerOption) {
	before := leak.Measure()
	c := &chaos{
		Scenario: Scenario{Worker: true, Server: opts}, t: t, calm: make(chan struct{}), over: make(chan struct{}), target: target,
		tell: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	}
	c.up()
	child.Serve(c.dialled)
	c.down(c.server.GracefulStop)
	leak.Eventually(t, "all handlers return", func() bool { return c.handlers.Load() == 0 })
	before.Check(t)
}

// startServer starts the server of a scenario with a child process.
func (c *chaos) startServer() {
	p, err := c.Child(c.target)
	if err != nil {
		c.errorf("%v", err)
		c.end()
	}
	c.process = p
}

func (c *chaos) endServer(how os.Signal) {
	if c.process == nil {
		return
	}
	if err := c.process.End(how); err != nil {
		c.errorf("%v", err)
	}
	c.restarts[how.String()]++
	c.process = nil
}

// stormChild restarts the server until the faults end. Some servers are killed at the
// start of a graceful stop.
func (c *chaos) stormChild() {
	r := rand.New(rand.NewPCG(c.seed, 1000))
	for pause(c.calm, r, 400*time.Millisecond) {
		switch r.IntN(3) {
		case 0:
			c.endServer(syscall.SIGTERM)
		case 1:
			if c.process != nil {
				_ = c.process.Signal(syscall.SIGTERM)
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			}
			fallthrough
		default:
			c.endServer(os.Kill)
		}
		c.startServer()
	}
}
