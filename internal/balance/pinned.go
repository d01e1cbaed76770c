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

// A pin is the value of such a call. grpc-go asks its current picker for it, as for any call.
//
// Invariants:
//
//   - If the SubConn is not ready, grpc-go waits for another picker. A pin lets it wait only if the
//     picker that was asked has given the SubConn to calls: then its policy will replace it, as grpc-go
//     expects of policies. Any other picker may stay for ever, so the call ends.
//   - grpc-go makes the call only over the connection that was picked, as long as the picker can tell:
//     a server that the SubConn has connected to since may be nearcall. If the connection is replaced
//     after that, before grpc-go takes it, the call goes to that server all the same, over the sessionConn.
//   - A call whose pin has ended it was not sent, or was refused, and the channel picks for it again. It
//     asks grpc-go for that, so it does not get the picker that has just been replaced, time and again.
type pin struct {
	*pinned
	cancel  context.CancelFunc // ends the call
	picked  bool               // the picker was asked before; like given, used only while grpc-go picks
	given   bool               // the picker that was asked has given the SubConn
	ended   atomic.Bool
	refusal atomic.Pointer[error] // of the stream, if one was opened
}

var (
	errUnpinned = status.Error(codes.Unavailable, "the connection to the ordinary gRPC server has ended")
	errRefused  = status.Error(codes.Unavailable, "the ordinary gRPC server has refused the call")
)

// result is the pick for the call, from the picker that grpc-go has asked. A second pick, which
// grpc-go makes if it has another picker or knows that no handler has seen the call, ends the call.
func (p *pin) result(asked *picker) (balancer.PickResult, error) {
	if p.picked || p.sc.current.Load() != p.over {
		p.end()
		return balancer.PickResult{}, errUnpinned
	}
	p.picked, p.given = true, p.sc.giver.Load() == asked.number
	return balancer.PickResult{SubConn: p.sc.SubConn, Done: p.done}, nil
}

// done is called with an empty DoneInfo if the SubConn is not ready, and otherwise when the attempt has
// ended.
func (p *pin) done(info balancer.DoneInfo) {
	switch {
	case info.BytesSent:
		if info.Err == nil { // a send has failed with io.EOF
			info.Err = errRefused
		}
		p.refusal.Store(&info.Err)
	case info.Err == nil && !p.given:
		p.end()
		p.cancel()
	}
}

// end makes the channel pick for the call again.
func (p *pin) end() {
	p.ended.Store(true)
	p.channel.picker.Store(nil)
}

// lost returns the error of the call. If the pin has ended the call, the error wraps
// [link.ErrUnprocessed].
func (p *pin) lost(err error) error {
	if err == nil || err == io.EOF || !p.ended.Load() {
		return err
	}
	if refusal := p.refusal.Load(); refusal != nil {
		return link.Unprocessed{Err: *refusal}
	}
	return link.Unprocessed{Err: errUnpinned, Unsent: true}
}

// A pinnedStream is a stream whose errors say what became of the call. It implements [grpc.ClientStream].
type pinnedStream struct {
	grpc.ClientStream
	pin *pin
}

func (s pinnedStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, s.pin.lost(err)
}

func (s pinnedStream) RecvMsg(m any) error { return s.pin.lost(s.ClientStream.RecvMsg(m)) }

// withOnce adds to the options of a call that grpc-go makes it once, except for a second pick. Retry
// policies are internal/call's, and service configs do not show them to grpc-go. The config selector
// has those of xDS, so grpc-go must not be able to retry the call.
func (p *pinned) withOnce(opts []grpc.CallOption) []grpc.CallOption {
	opts = append(opts, grpc.WaitForReady(false))
	if a := p.channel.applied.Load(); a != nil && a.selector != nil {
		opts = append(opts, grpc.MaxRetryRPCBufferSize(0))
	}
	return opts
}

// pin returns a pin for a call, and its context.
func (p *pinned) pin(ctx context.Context) (context.Context, *pin) {
	own := &pin{pinned: p}
	ctx, own.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, ownKey{}, own), own
}

// Invoke implements [grpc.ClientConnInterface].
func (p *pinned) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, own := p.pin(ctx)
	defer own.cancel()
	err := p.channel.conn.Invoke(ctx, method, args, reply, p.withOnce(opts)...)
	if err != nil && p.channel.conn.GetState() == connectivity.Shutdown {
		return errClosing
	}
	return own.lost(err)
}

// NewStream implements [grpc.ClientConnInterface]. ctx ends with the stream.
func (p *pinned) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, own := p.pin(ctx)
	s, err := p.channel.conn.NewStream(ctx, desc, method, p.withOnce(opts)...)
	if err != nil {
		return nil, own.lost(err)
	}
	return pinnedStream{s, own}, nil
}
