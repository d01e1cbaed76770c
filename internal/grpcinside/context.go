package grpcinside

import (
	"context"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// The context keys under which grpc-go's packages look up metadata, the peer and so on. The keys
// are unexported, so we capture them from lookups by those packages. With the keys, a handler's
// context makes metadata only when someone reads it, not for each call. Without ContextKeys the first
// three lead to nothing. RPCInfoKey is that of grpc.PreparedMsg.
var (
	IncomingKey = keyOf(func(ctx context.Context) { metadata.FromIncomingContext(ctx) })
	PeerKey     = keyOf(func(ctx context.Context) { peer.FromContext(ctx) })
	StreamKey   = keyOf(func(ctx context.Context) { grpc.ServerTransportStreamFromContext(ctx) })
	RPCInfoKey  = keyOf(func(ctx context.Context) { _ = new(grpc.PreparedMsg).Encode(onlyContext{ctx: ctx}, nil) })
)

// Each key must lead to a value of the type that a handler's context has for it, and no other
// lookup may be made.
func init() {
	md, p, s := metadata.Pairs("k", "v"), new(peer.Peer), new(stream)
	none := context.Background()
	foundMD, okMD := metadata.FromIncomingContext(only{none, IncomingKey, md})
	foundPeer, okPeer := peer.FromContext(only{none, PeerKey, p})
	ContextKeys.check(okMD && len(foundMD["k"]) == 1 && okPeer && foundPeer == p &&
		grpc.ServerTransportStreamFromContext(only{none, StreamKey, s}) == grpc.ServerTransportStream(s))
}

// HandlerContext returns a context that has what the first three keys lead to.
func HandlerContext(md metadata.MD, p *peer.Peer, s grpc.ServerTransportStream) context.Context {
	ctx := metadata.NewIncomingContext(context.Background(), md)
	return grpc.NewContextWithServerTransportStream(peer.NewContext(ctx, p), s)
}

type stream struct{ grpc.ServerTransportStream }

// An only is a context with one value.
type only struct {
	context.Context
	key, value any
}

func (o only) Value(key any) any {
	if key == o.key {
		return o.value
	}
	return nil
}

// outgoingRaw is grpc-go's function that returns outgoing metadata as the user has set it, of type
// func(context.Context) (metadata.MD, [][]string, bool).
//
//go:linkname outgoingRaw google.golang.org/grpc/internal.FromOutgoingContextRaw
var outgoingRaw any

// Outgoing returns ctx's outgoing metadata as the user has set it: a map, and lists of keys and values
// that were added to it. It must not be modified. The exported accessor converts keys to lower
// case, which would hide the error of an upper-case key.
func Outgoing(ctx context.Context) (md metadata.MD, added [][]string) {
	if raw, ok := outgoingRaw.(func(context.Context) (metadata.MD, [][]string, bool)); RawMetadata.Found() && RawMetadata.check(ok) {
		md, added, _ = raw(ctx)
		return md, added
	}
	md, _ = metadata.FromOutgoingContext(ctx)
	return md, nil
}

// onlyContext is a stream of which only Context may be called.
type onlyContext struct {
	grpc.Stream
	ctx context.Context
}

func (s onlyContext) Context() context.Context { return s.ctx }

// keyOf returns the last key that the function look reads from its context. If there is none it
// returns a key that nobody else has.
func keyOf(look func(context.Context)) any {
	l := listener{Context: context.Background(), key: new(int)}
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
