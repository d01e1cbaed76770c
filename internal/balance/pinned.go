package balance

import (
	"context"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// pinned makes calls with grpc-go on one connection of a SubConn, whose server speaks only gRPC. It is
// the conn of a [grpcgo.Session].
type pinned struct {
	channel *Channel
	sc      *subConn
	over    *current
}

// A pin is the value of such a call.
type pin struct {
	*pinned
	picked  atomic.Bool
	ended   atomic.Bool           // by errUnpinned
	refusal atomic.Pointer[error] // of the stream, if one was opened
}

var errUnpinned = status.Error(codes.Unavailable, "the connection to the ordinary gRPC server has ended")

// result is the pick for the call. grpc-go picks again if the SubConn is not ready, after it has
// another picker, or if it knows that no handler has seen the call. Then the call ends, and the
// channel picks for it. It also ends if the policy knows already that the SubConn is not ready: nobody
// might ask the policy to connect, and so there would be no other picker. And it ends if the SubConn
// has another connection by now, whose server may be nearcall. If the connection is replaced after
// this, before grpc-go takes it, the call goes to that server all the same, over the carrier.
func (p *pin) result() (balancer.PickResult, error) {
	if !p.picked.Swap(true) && p.sc.ready.Load() && p.sc.current.Load() == p.over {
		return balancer.PickResult{SubConn: p.sc.SubConn, Done: p.done}, nil
	}
	p.ended.Store(true)
	return balancer.PickResult{}, errUnpinned
}

// done is called before the second pick.
func (p *pin) done(info balancer.DoneInfo) {
	if info.BytesSent {
		p.refusal.Store(&info.Err)
	}
}

// lost returns the error of the call, which says [link.ErrUnprocessed] if errUnpinned has ended it.
func (p *pin) lost(err error) error {
	if err == nil || err == io.EOF || !p.ended.Load() {
		return err
	}
	if refusal := p.refusal.Load(); refusal != nil {
		return link.Unprocessed{Err: *refusal}
	}
	return link.Unprocessed{Err: err, Unsent: true}
}

// A pinnedStream is a stream whose errors say what became of the call.
type pinnedStream struct {
	grpc.ClientStream
	pin *pin
}

// Header implements [grpc.ClientStream].
func (s pinnedStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.pin.lost(err)
}

// RecvMsg implements [grpc.ClientStream].
func (s pinnedStream) RecvMsg(m any) error { return s.pin.lost(s.ClientStream.RecvMsg(m)) }

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
	own := &pin{pinned: p}
	err := p.channel.conn.Invoke(context.WithValue(ctx, ownKey{}, own), method, args, reply, p.withOnce(opts)...)
	if err != nil && p.channel.conn.GetState() == connectivity.Shutdown {
		return errClosing
	}
	return own.lost(err)
}

// NewStream implements [grpc.ClientConnInterface].
func (p *pinned) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	own := &pin{pinned: p}
	s, err := p.channel.conn.NewStream(context.WithValue(ctx, ownKey{}, own), desc, method, p.withOnce(opts)...)
	if err != nil {
		return nil, own.lost(err)
	}
	return pinnedStream{s, own}, nil
}
