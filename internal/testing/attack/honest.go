//go:build linux

package attack

import (
	"context"
	"slices"
	"sync"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

// honestLimit is the timeout of the honest client's calls.
const honestLimit = 10 * time.Second

// A phase is what an honest client has measured in a part of a trial.
type phase struct {
	Calls, Failed int // calls that have ended
	P50, P99, Max time.Duration
	Failure       string // of the last failed call
}

// A client is an honest one.
type client struct {
	conn  *nearcall.ClientConn
	stub  testpb.TestServiceClient
	stop  chan struct{}
	ended sync.WaitGroup

	mu     sync.Mutex
	begun  time.Time // of the current call; zero if there is none
	took   []time.Duration
	failed int
	last   error
}

func newClient(target string, opts []nearcall.DialOption) (*client, error) {
	conn, err := nearcall.NewClient(target, opts...)
	return &client{conn: conn, stub: testpb.NewTestServiceClient(conn), stop: make(chan struct{})}, err
}

// run makes a small call in each period until the client is closed.
func (c *client) run(period time.Duration) {
	pause := time.NewTicker(period)
	defer pause.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-pause.C:
			c.call()
		}
	}
}

func (c *client) close() {
	close(c.stop)
	_ = c.conn.Close()
	c.ended.Wait()
}

func (c *client) call() {
	ctx, cancel := context.WithTimeout(context.Background(), honestLimit)
	defer cancel()
	begun := time.Now()
	c.mu.Lock()
	c.begun = begun
	c.mu.Unlock()
	_, err := c.stub.EmptyCall(ctx, &testpb.Empty{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, time.Since(begun))
	c.begun = time.Time{}
	if err != nil {
		c.failed++
		c.last = err
	}
}

// next ends a phase and starts another. The current call's time so far counts in the
// latencies, but the call itself counts in the phase that it ends in.
func (c *client) next() phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := len(c.took)
	if !c.begun.IsZero() {
		c.took = append(c.took, time.Since(c.begun))
	}
	slices.Sort(c.took)
	p := phase{Calls: calls, Failed: c.failed, P50: percentile(c.took, 50), P99: percentile(c.took, 99), Max: percentile(c.took, 100)}
	if c.last != nil {
		p.Failure = c.last.Error()
	}
	c.took, c.failed, c.last = c.took[:0], 0, nil
	return p
}
