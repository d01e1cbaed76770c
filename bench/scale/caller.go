package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// Loads.
const (
	unary   = "calls"
	streams = "streams" // each sends a message when the last one has been answered
)

var loads = []string{unary, streams}

const size = 20 // of a message's payload, in bytes

// A caller runs loads, one at a time.
type caller struct {
	to     testpb.TestServiceClient
	cancel context.CancelFunc
	all    sync.WaitGroup
	phase  atomic.Int32
	took   histogram
	failed chan error
}

// Phases of a load.
const (
	warms int32 = iota
	counts
	ends
)

// begin runs a load until end is called. It returns what was done in the given time, once
// all calls or streams have been answered at least once.
func (c *caller) begin(load string, n int, lasts time.Duration) (answer, error) {
	one, ok := map[string]func(context.Context) (func() error, error){unary: c.unary, streams: c.stream}[load]
	if !ok {
		return answer{}, fmt.Errorf("there is no load %q", load)
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.failed = make(chan error, n)
	c.phase.Store(warms)
	c.took.reset()
	var warm sync.WaitGroup
	warm.Add(n)
	for range n {
		c.all.Go(func() {
			once, err := c.repeat(ctx, one, &warm)
			if err != nil {
				c.failed <- err
			}
			if !once {
				warm.Done()
			}
		})
	}
	warm.Wait()
	start := time.Now()
	c.phase.Store(counts)
	select {
	case err := <-c.failed:
		return answer{}, errors.Join(err, c.end())
	case <-time.After(lasts):
	}
	c.phase.Store(warms)
	a := answer{Took: time.Since(start)}
	a.Done, a.P50, a.P99 = c.took.sum()
	return a, nil
}

// repeat does one thing again and again until the load ends. once reports whether it has told
// warm that it was done for the first time.
func (c *caller) repeat(ctx context.Context, one func(context.Context) (func() error, error), warm *sync.WaitGroup) (once bool, err error) {
	ctx, cancel := context.WithCancel(ctx) // one for each goroutine, as they would contend for the lock of a shared one
	defer cancel()
	do, err := one(ctx)
	if err != nil {
		return false, err
	}
	for begun := time.Now(); ; {
		if err := do(); err != nil {
			return once, err
		}
		if !once {
			once = true
			warm.Done()
		}
		now := time.Now()
		switch c.phase.Load() {
		case counts:
			c.took.add(now.Sub(begun))
		case ends:
			return once, nil
		}
		begun = now
	}
}

// end ends the load, and returns the first error of its calls.
func (c *caller) end() error {
	c.phase.Store(ends)
	c.all.Wait()
	c.cancel()
	close(c.failed)
	return <-c.failed
}

var errLength = errors.New("a reply of the wrong length")

// unary returns a function that makes a call.
func (c *caller) unary(ctx context.Context) (func() error, error) {
	return func() error {
		out, err := c.to.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}})
		if err == nil && len(out.GetPayload().GetBody()) != size {
			err = errLength
		}
		return err
	}, nil
}

// stream opens a stream, and returns a function that sends a message and receives the answer.
func (c *caller) stream(ctx context.Context) (func() error, error) {
	s, err := c.to.FullDuplexCall(ctx)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := s.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}); err != nil {
			return err
		}
		out, err := s.Recv()
		if err == nil && len(out.GetPayload().GetBody()) != size {
			err = errLength
		}
		return err
	}, nil
}
