package call

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// The keys under which grpc-go's packages look up what a handler's context
// carries. They are unexported, so we ask the packages to look them up. With
// them a context can make metadata when somebody reads it, instead of for each
// call. A test keeps them known.
var (
	incomingKey = keyOf(func(ctx context.Context) { metadata.FromIncomingContext(ctx) })
	outgoingKey = keyOf(func(ctx context.Context) { metadata.FromOutgoingContext(ctx) })
	peerKey     = keyOf(func(ctx context.Context) { peer.FromContext(ctx) })
	streamKey   = keyOf(func(ctx context.Context) { grpc.ServerTransportStreamFromContext(ctx) })
	rpcInfoKey  = keyOf(func(ctx context.Context) { _ = new(grpc.PreparedMsg).Encode(onlyContext{ctx: ctx}, nil) })
)

// onlyContext is a stream that has no more than a context.
type onlyContext struct {
	Stream
	ctx context.Context
}

func (s onlyContext) Context() context.Context { return s.ctx }

// keyOf returns the last key that look asks a context for.
func keyOf(look func(context.Context)) any {
	l := listener{Context: context.Background()}
	look(&l)
	return l.key
}

type listener struct {
	context.Context
	key any
}

func (l *listener) Value(key any) any {
	l.key = key
	return nil
}
