// Package hook lets this project's own modules reach what package nearcall
// does not export: transports that are handed in, and the test beds.
package hook

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// Dialer makes a nearcall.DialOption that has d open the sessions of a
// connection, whatever its target. Package nearcall sets it.
var Dialer func(d link.Dialer) any

// Forward makes a nearcall.ServerOption that has handler take the calls to services that
// are not registered. Their messages are whatever codec encodes and decodes. services
// returns those that there are. Package nearcall sets it.
var Forward func(handler func(s grpc.ServerStream, clientStreams bool) error, codec encoding.CodecV2, services func() map[string]grpc.ServiceInfo) any

// Loop returns a *loop.Loop as those see it who run handlers on it. Package loop
// sets it.
var Loop func(l any) wait.Loop
