package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

const size = 32 // size of a call's payload, in bytes

// times are percentiles of the times of calls.
type times struct{ p50, p99 time.Duration }

// sum sorts took, which must not be empty, and returns its percentiles.
func sum(took []time.Duration) times {
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	return times{at(50), at(99)}
}

// beside makes one call after another while the given number of tasks are suspended, and
// returns how long each call took. It reuses the memory of into.
func (l line) beside(tasks int, lasts time.Duration, into []time.Duration) (took []time.Duration, err error) {
	c, err := l.open(tasks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if took, err = repeat(c.client, lasts/2, into[:0]); err != nil { // warm
		return nil, err
	}
	runtime.GC() // so that this measurement does not pay for the garbage of the last
	return repeat(c.client, lasts, took[:0])
}

// repeat makes calls until the time is up, and at least one.
func repeat(to testpb.TestServiceClient, lasts time.Duration, took []time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}
	begun := time.Now()
	for over := begun.Add(lasts); ; {
		out, err := to.UnaryCall(ctx, in)
		if err == nil && len(out.GetPayload().GetBody()) != size {
			err = errors.New("a reply of the wrong length")
		}
		if err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(begun))
		if begun = now; !now.Before(over) {
			return took, nil
		}
	}
}
