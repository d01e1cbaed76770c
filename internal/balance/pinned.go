package balance

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

// pinned makes calls with grpc-go on one SubConn, whose server speaks only gRPC. It is the conn of a
// [grpcgo.Session].
type pinned struct {
	channel *Channel
	sc      *subConn
}

// A pin is the value of such a call. It implements [grpcgo.Attempt].
type pin struct {
	sc    *subConn
	picks atomic.Int32
}

var errUnpinned = status.Error(codes.Unavailable, "the connection to the ordinary gRPC server has ended")

// result is the pick for the call. grpc-go picks again if the SubConn is not ready, or if it knows that
// no handler has seen the call. Then the call ends, and the channel picks for it.
func (p *pin) result() (balancer.PickResult, error) {
	if p.picks.Add(1) > 1 {
		return balancer.PickResult{}, errUnpinned
	}
	return balancer.PickResult{SubConn: p.sc.SubConn}, nil
}

// Unprocessed implements [grpcgo.Attempt].
func (p *pin) Unprocessed() bool { return p.picks.Load() > 1 }

// An unprocessed error is that of a call that ended because of a second pick.
type unprocessed struct {
	error
	*pin
}

// Unwrap returns the status error.
func (u unprocessed) Unwrap() error { return u.error }

// A pinnedStream is a stream that knows its pin.
type pinnedStream struct {
	grpc.ClientStream
	*pin
}

// withOnce adds to the options of a call that grpc-go makes it once, except for a second pick. Retry
// policies are internal/call's, and service configs do not show them to grpc-go. Those of xDS are in
// the config selector, and so grpc-go must not be able to make such a call again.
func (p *pinned) withOnce(opts []grpc.CallOption) []grpc.CallOption {
	opts = append(opts, grpc.WaitForReady(false))
	if a := p.channel.applied.Load(); a != nil && a.selector != nil {
		opts = append(opts, grpc.MaxRetryRPCBufferSize(0))
	}
	return opts
}

// Invoke implements [grpc.ClientConnInterface].
func (p *pinned) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	own := &pin{sc: p.sc}
	err := p.channel.conn.Invoke(context.WithValue(ctx, ownKey{}, own), method, args, reply, p.withOnce(opts)...)
	switch {
	case err == nil:
	case p.channel.conn.GetState() == connectivity.Shutdown:
		return errClosing
	case own.Unprocessed():
		return unprocessed{err, own}
	}
	return err
}

// NewStream implements [grpc.ClientConnInterface].
func (p *pinned) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	own := &pin{sc: p.sc}
	s, err := p.channel.conn.NewStream(context.WithValue(ctx, ownKey{}, own), desc, method, p.withOnce(opts)...)
	if err != nil {
		return nil, err
	}
	return pinnedStream{s, own}, nil
}
