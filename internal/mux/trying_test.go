package mux

import (
	"sync/atomic"
	"testing"
)

// A tried connection counts how often it was asked whether it is ready.
type tried struct {
	Conn
	Prompt
	times atomic.Int64
}

func (c *tried) TryRead(b []byte) (int, error) {
	c.times.Add(1)
	return c.Prompt.TryRead(b)
}

func TestReadersTryUnlessTheyAreToPark(t *testing.T) {
	for name, parks := range map[string]bool{"try": false, "park": true} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, "unix")
			client, server := &tried{Conn: a, Prompt: promptOf(a)}, &tried{Conn: b, Prompt: promptOf(b)}
			cs, _ := startBoth(t, client, server, Options{Parks: parks}, Options{Parks: parks}, &waiter{})
			for range 100 {
				echoes(t, cs, noise(100))
			}
			if c, s := client.times.Load(), server.times.Load(); parks && c+s > 0 || !parks && (c == 0 || s == 0) {
				t.Errorf("the client has tried %d times, and the server %d times", c, s)
			}
		})
	}
}
