package balance

import (
	"context"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/nearcall/nearcall/internal/durations"
)

// grpc-go counts its own calls to find out whether a ClientConn is idle. So a timer checks now
// and then whether the channel had calls, and if so makes a call with grpc-go.

// watchIdleness is called when the channel leaves idle mode.
func (c *Channel) watchIdleness() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Options.IdleAfter <= 0 || c.watcher != nil || c.closed {
		return
	}
	c.watcher = time.AfterFunc(c.lookAfter(), c.lookForCalls)
}

func (c *Channel) lookAfter() time.Duration { return durations.Recheck(c.cfg.Options.IdleAfter / 4) }

// idleTimeout returns the timeout for grpc-go. It is somewhat longer than the channel's, so that the
// timer looks before it passes, also on a busy machine.
func (c *Channel) idleTimeout() time.Duration {
	if c.cfg.Options.IdleAfter <= 0 {
		return 0
	}
	return durations.Sum(c.cfg.Options.IdleAfter, 100*time.Millisecond)
}

// touch makes a call with grpc-go that ends at once. It makes grpc-go leave idle mode, or stay out of
// it.
func (c *Channel) touch() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.newStream(ctx, &capture{configOnly: true}, "/nearcall.Idle/Touch")
}

func (c *Channel) lookForCalls() {
	if c.cfg.Active() {
		c.touch()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.conn.GetState() != connectivity.Shutdown {
		c.watcher.Reset(c.lookAfter())
	}
}
