// Package hook gives this project's own modules access to what package nearcall does not
// export: other transports, and what the tests need.
package hook

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Dialer returns a nearcall.DialOption that makes d open the sessions of a connection,
// whatever its target. Package nearcall sets it.
var Dialer func(d link.Dialer) any

// Forward returns a nearcall.ServerOption that makes handler handle the calls to services
// that are not registered. codec encodes and decodes their messages. services returns the
// services that handler has. Package nearcall sets it.
var Forward func(handler func(s grpc.ServerStream, clientStreams bool) error, codec encoding.CodecV2, services func() map[string]grpc.ServiceInfo) any

// Loop returns the wait.Loop of a *loop.Loop, for code that runs handlers on it. Package
// loop sets it.
var Loop func(l any) wait.Loop
