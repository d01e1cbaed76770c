package http1

import (
	"errors"
	"time"

	"github.com/nearcall/nearcall/internal/durations"
)

// startAges starts the timers for the idle time and the age of the connection. mu is held.
func (c *session) startAges() {
	c.idleSince = time.Now()
	c.idle = time.AfterFunc(c.server.idle, c.onIdle)
	if d := c.server.opts.Keepalive.MaxConnectionAge; d > 0 {
		c.age = time.AfterFunc(durations.Age(d), c.onAge)
	}
}

// stopAges stops the timers. mu is held.
func (c *session) stopAges() {
	for _, t := range []*time.Timer{c.idle, c.age} {
		if t != nil {
			t.Stop()
		}
	}
}

// onIdle closes a connection that has been without requests for too long.
func (c *session) onIdle() {
	c.mu.Lock()
	left := c.server.idle
	if !c.busy {
		left -= time.Since(c.idleSince)
	}
	idle := false
	switch {
	case c.over:
	case left > 0:
		c.idle.Reset(durations.Recheck(left))
	default:
		idle = c.beginDrain()
	}
	c.mu.Unlock()
	if idle {
		_ = c.conn.Close()
	}
}

var errOld = errors.New("the connection reached MaxConnectionAge")

// onAge drains a session that has reached MaxConnectionAge. After the grace period, if any, it
// closes the session.
func (c *session) onAge() {
	c.mu.Lock()
	idle := c.beginDrain()
	if grace := c.server.opts.Keepalive.MaxConnectionAgeGrace; grace != 0 && !c.over {
		c.age = time.AfterFunc(grace, func() { _ = c.Close(errOld) })
	}
	c.mu.Unlock()
	if idle {
		_ = c.conn.Close()
	}
}
