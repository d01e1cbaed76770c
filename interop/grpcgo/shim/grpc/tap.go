package grpc

import (
	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/tap"
)

// InTapHandle is nearcall's option for clients of nearcall.
func InTapHandle(h tap.ServerInHandle) ServerOption {
	if near.On == near.Ordinary {
		return onServer(g.InTapHandle(h))
	}
	return onServer(g.InTapHandle(h), nearcall.InTapHandle(h))
}
