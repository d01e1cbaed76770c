package balance

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pinned makes calls with grpc-go on one SubConn, whose server speaks only gRPC.
type pinned struct {
	channel *Channel
	sc      *subConn
}

// A pin is the value of such a call.
type pin struct {
	sc   *subConn
	used bool
}

var errUnpinned = status.Error(codes.Unavailable, "the connection to the ordinary gRPC server has ended")

// result is the pick for the call. A second pick means that the SubConn is not ready any more.
func (p *pin) result() (balancer.PickResult, error) {
	if p.used {
		return balancer.PickResult{}, errUnpinned
	}
	p.used = true
	return balancer.PickResult{SubConn: p.sc.SubConn}, nil
}

// once prevents that grpc-go retries a call: whoever calls does.
var once = []grpc.CallOption{grpc.WaitForReady(false), grpc.MaxRetryRPCBufferSize(0)}

// Invoke implements [grpc.ClientConnInterface].
func (p *pinned) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return p.channel.conn.Invoke(context.WithValue(ctx, ownKey{}, &pin{sc: p.sc}), method, args, reply, append(opts, once...)...)
}

// NewStream implements [grpc.ClientConnInterface].
func (p *pinned) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return p.channel.conn.NewStream(context.WithValue(ctx, ownKey{}, &pin{sc: p.sc}), desc, method, append(opts, once...)...)
}
