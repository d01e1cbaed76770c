package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// What a caller does during its call.
const (
	nothing     = iota
	doCancel    // it cancels after a while
	doDeadline  // it has a short timeout
	doCancelled // its context is cancelled before the call
	doLeave     // it leaves in the middle of a stream
	ends
)

// What a handler does during its call.
const (
	answer   = iota
	doNap    // it sleeps
	doDerive // it derives contexts
	doKill   // it cancels its caller
	doFail   // it returns an error
	doPanic  // it panics
	doGoexit // it calls runtime.Goexit
	doWait   // it waits until its context is done
	doStray  // it leaves a goroutine behind that uses the stream
	doTask   // it waits for another task of its loop, if it runs on one
	acts
)

const (
	unaryKind = iota
	outputKind
	inputKind
	duplexKind
	halfKind
	kinds
)

func (c *chaos) plan(r *rand.Rand) *plan {
	p := &plan{
		kind: r.IntN(kinds), tag: r.Uint64(), ready: r.IntN(2) == 0,
		after: time.Duration(r.IntN(1500)) * time.Microsecond,
	}
	if r.IntN(3) == 0 {
		p.end = r.IntN(ends)
	}
	if r.IntN(2) == 0 {
		p.act = r.IntN(acts)
	}
	n := 1
	if p.kind != unaryKind {
		n = 1 + r.IntN(20)
	}
	for range n {
		size := Header + r.IntN(100)
		if r.IntN(10) == 0 {
			size += r.IntN(10_000)
		}
		p.sizes = append(p.sizes, size)
	}
	if p.kind == unaryKind && r.IntN(50) == 0 {
		p.sizes[0] = maxRecv + 1
	}
	p.at = r.IntN(n)
	if p.act == doGoexit && !c.Worker {
		p.act = answer // Goexit would end the caller's goroutine
	}
	if p.act == doWait && p.end != doCancelled {
		p.end = doCancel + r.IntN(2) // otherwise the call would never end
	}
	return p
}

// call makes one call and checks how it ends.
func (c *chaos) call(r *rand.Rand) {
	p := c.plan(r)
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if p.end != nothing || p.act == doKill || r.IntN(2) == 0 {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	switch p.end {
	case doCancelled:
		cancel()
	case doCancel:
		defer time.AfterFunc(p.after, cancel).Stop()
	case doDeadline:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, p.after)
		defer stop()
	}
	c.cancels.Store(p.tag, cancel)
	defer c.cancels.Delete(p.tag)
	ctx = metadata.AppendToOutgoingContext(ctx,
		"tag", strconv.FormatUint(p.tag, 16), "act", strconv.Itoa(p.act), "at", strconv.Itoa(p.at))

	var trailer metadata.MD
	var server peer.Peer
	var finished atomic.Int32
	opts := []grpc.CallOption{grpc.WaitForReady(p.ready), grpc.Trailer(&trailer), grpc.Peer(&server), grpc.OnFinish(func(error) { finished.Add(1) })}
	client := testpb.NewTestServiceClient(c.conn.Load())
	var err error
	switch p.kind {
	case unaryKind:
		err = p.unary(ctx, client, opts)
	case outputKind:
		err = p.output(ctx, cancel, client, opts)
	case inputKind:
		err = p.input(ctx, cancel, client, opts)
	default:
		err = p.both(ctx, cancel, client, opts)
	}
	code := status.Code(err)
	c.mu.Lock()
	if c.codes == nil {
		c.codes = make(map[codes.Code]int)
	}
	c.codes[code]++
	c.mu.Unlock()
	switch {
	case !slices.Contains(p.allowed(&c.Scenario), code):
		c.errorf("%v: got %v, want one of %v", p, err, p.allowed(&c.Scenario))
	case code == codes.FailedPrecondition && !strings.Contains(err.Error(), tagText(p.tag)):
		c.errorf("%v: got the error of another call: %v", p, err)
	case p.end == nothing && p.act != doKill && (code == codes.OK || code == codes.FailedPrecondition):
		// A cancelled call can end before its trailer arrives.
		if got := fmt.Sprint(trailer["tag"]); got != "["+tagText(p.tag)+"]" {
			c.errorf("%v: ended with %v and the trailer %s", p, err, got)
		}
		if c.Network != "" && server.Addr.Network() != c.Network {
			c.errorf("%v: went over %s, want %s", p, server.Addr.Network(), c.Network)
		}
	}
	// A session that breaks ends its calls from its own goroutine, which calls OnFinish
	// just before or just after RecvMsg returns, as in grpc-go.
	for range 5000 {
		if finished.Load() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if code == codes.Unavailable && (c.faulty() || c.Retries) {
		time.Sleep(time.Millisecond) // otherwise failing calls would dominate
	}
	if finished.Load() != 1 {
		c.errorf("%v: OnFinish was called %d times", p, finished.Load())
	}
}

func tagText(tag uint64) string { return strconv.FormatUint(tag, 16) }

// wrong returns err with a code that no plan allows.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.DataLoss, err.Error())
}

// Interceptors of the server.

func (c *chaos) unaryGuard(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
	c.handlers.Add(1)
	defer c.handlers.Add(-1)
	defer guard(&err)
	return next(ctx, req)
}

func (c *chaos) streamGuard(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	c.handlers.Add(1)
	defer c.handlers.Add(-1)
	defer guard(&err)
	return next(srv, ss)
}

// guard recovers a panic and turns it into an error.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = status.Errorf(codes.Internal, "panic: %v", r)
	}
}
