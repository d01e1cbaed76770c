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
	size     = 20               // of a message's payload, in bytes
	patience = 20 * time.Second // how long past the end of a run calls may take
)

// A caller makes calls and records how long they took. It reuses the memory of its records,
// so that their growth is not measured.
type caller struct {
	to   testpb.TestServiceClient
	took [][]time.Duration // one for each concurrent goroutine
	all  []time.Duration
}

// run makes calls from the given number of goroutines, each one call after another, and
// returns how long that took in all.
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

// repeat makes calls until the given time, and at least one.
func (c *caller) repeat(ctx context.Context, took *[]time.Duration, then time.Time) error {
	ctx, cancel := context.WithCancel(ctx) // one for each goroutine, as they would contend for the lock of a shared one
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

// call makes a call. It stores the peer that answered in by unless that is nil.
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

// sum returns the number of calls of the last run, and the 50th and 99th percentiles of their
// times.
func (c *caller) sum() (calls int, p50, p99 time.Duration) {
	c.all = c.all[:0]
	for _, took := range c.took {
		c.all = append(c.all, took...)
	}
	slices.Sort(c.all)
	at := func(part float64) time.Duration { return c.all[int(part*float64(len(c.all)-1))] }
	return len(c.all), at(0.5), at(0.99)
}
