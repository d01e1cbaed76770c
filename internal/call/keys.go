package call

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// The context keys under which grpc-go's packages look up metadata, the peer and so on. The keys
// are unexported, so we capture them from lookups by those packages. With the keys, a handler's
// context makes metadata only when someone reads it, not for each call. A test fails if a key is
// not found.
var (
	incomingKey = keyOf(func(ctx context.Context) { metadata.FromIncomingContext(ctx) })
	outgoingKey = keyOf(func(ctx context.Context) { metadata.FromOutgoingContext(ctx) })
	peerKey     = keyOf(func(ctx context.Context) { peer.FromContext(ctx) })
	streamKey   = keyOf(func(ctx context.Context) { grpc.ServerTransportStreamFromContext(ctx) })
	rpcInfoKey  = keyOf(func(ctx context.Context) { _ = new(grpc.PreparedMsg).Encode(onlyContext{ctx: ctx}, nil) })
)

// onlyContext is a stream of which only Context may be called.
type onlyContext struct {
	Stream
	ctx context.Context
}

func (s onlyContext) Context() context.Context { return s.ctx }

// keyOf returns the last key that the function look reads from its context.
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
