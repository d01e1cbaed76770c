package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	testpb "google.golang.org/grpc/interop/grpc_testing"
)

const size = 32 // of a call's payload, in bytes

// times are how long calls took.
type times struct{ p50, p99 time.Duration }

// sum sorts what calls took, of which there are some.
func sum(took []time.Duration) times {
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1] }
	return times{at(50), at(99)}
}

// beside makes one caller make call after call beside so many suspended tasks, and
// returns how long each call took. It writes to the memory of into.
func (l line) beside(tasks int, lasts time.Duration, into []time.Duration) (took []time.Duration, err error) {
	c, err := l.open(tasks)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if took, err = repeat(c.client, lasts/2, into[:0]); err != nil { // warm
		return nil, err
	}
	runtime.GC() // the garbage of what was before is not this one's
	return repeat(c.client, lasts, took[:0])
}

// repeat calls until the time is over, and once at least.
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
