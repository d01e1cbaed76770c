// Package hook gives this project's own modules access to what package nearcall does not
// export: other transports, and what the tests need.
package hook

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/nearcall/nearcall/internal/link"
)

// Dialer returns a nearcall.DialOption that makes d open the sessions of a connection,
// whatever its target. Package nearcall sets it.
var Dialer func(d link.Dialer) any

// Forward returns a nearcall.ServerOption that makes handler handle the calls to services
// that are not registered. codec encodes and decodes their messages. services returns the
// services that handler has. Package nearcall sets it.
var Forward func(handler func(s grpc.ServerStream, clientStreams bool) error, codec ForwardCodec, services func() map[string]grpc.ServiceInfo) any

// A ForwardCodec is the codec of forwarded calls.
type ForwardCodec interface {
	encoding.CodecV2

	// Encodes reports whether v is a message of forwarded calls.
	Encodes(v any) bool
}

// Connect returns a dialer for a target of nearcall's, or of grpc-go's, with options that
// are nearcall.DialOptions. The calls that the peer makes go to the acceptor that accept
// returns; accept may be nil. Package nearcall sets it.
var Connect func(target string, accept func(link.Session) link.Acceptor, opts ...any) (link.Dialer, error)

// Proxy returns a nearcall.ServerOption that makes accept accept all sessions, and handler
// handle the calls of ordinary gRPC clients, with codec. Package nearcall sets it.
var Proxy func(accept func(link.Session) link.Acceptor, handler grpc.StreamHandler, codec encoding.CodecV2) any
