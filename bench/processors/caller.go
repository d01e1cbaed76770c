package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
)

const (
	size     = 20               // of a message's payload
	patience = 20 * time.Second // with calls that are to have ended
)

// A caller makes calls, and notes how long they took. What it notes that in is
// used again, so that its growth is not measured.
type caller struct {
	to   testpb.TestServiceClient
	took [][]time.Duration // for each of those who call at a time
	all  []time.Duration
}

// run has so many call at a time, each its next call when the last is over, and
// returns how long they took over all.
func (c *caller) run(callers int, lasts time.Duration) (time.Duration, error) {
	for len(c.took) < callers {
		c.took = append(c.took, nil)
	}
	for i := range c.took {
		c.took[i] = c.took[i][:0]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(lasts+patience, cancel).Stop()
	errs := make([]error, callers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range callers {
		all.Go(func() { errs[i] = c.repeat(ctx, &c.took[i], start.Add(lasts)) })
	}
	all.Wait()
	return time.Since(start), errors.Join(errs...)
}

// repeat calls until then, and once at least.
func (c *caller) repeat(ctx context.Context, took *[]time.Duration, then time.Time) error {
	ctx, cancel := context.WithCancel(ctx) // one each: callers of one context meet at its lock
	defer cancel()
	for begun := time.Now(); ; {
		if err := c.call(ctx, nil); err != nil {
			return err
		}
		now := time.Now()
		*took = append(*took, now.Sub(begun))
		if begun = now; !now.Before(then) {
			return nil
		}
	}
}

// call makes a call, and says by whom it was answered if somebody asks.
func (c *caller) call(ctx context.Context, by *peer.Peer) error {
	var opts []grpc.CallOption
	if by != nil {
		opts = append(opts, grpc.Peer(by))
	}
	out, err := c.to.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}, opts...)
	if err == nil && len(out.GetPayload().GetBody()) != size {
		err = errors.New("a reply of the wrong length")
	}
	return err
}

// sum returns how many calls the last run had, and what half of them and 99 of
// 100 took at most.
func (c *caller) sum() (calls int, p50, p99 time.Duration) {
	c.all = c.all[:0]
	for _, took := range c.took {
		c.all = append(c.all, took...)
	}
	slices.Sort(c.all)
	at := func(part float64) time.Duration { return c.all[int(part*float64(len(c.all)-1))] }
	return len(c.all), at(0.5), at(0.99)
}
