package main

import (
	"context"

	"google.golang.org/grpc"
)

// A registry keeps what generated code registers, for servers that are not
// gRPC's but have the same services.
type registry []registered

type registered struct {
	desc *grpc.ServiceDesc
	impl any
}

// RegisterService implements [grpc.ServiceRegistrar].
func (r *registry) RegisterService(desc *grpc.ServiceDesc, impl any) {
	*r = append(*r, registered{desc, impl})
}

func registryOf(s Services) registry {
	var r registry
	register(&r, s)
	return r
}

// handlerStream is a stream of another server, as gRPC's generated code wants
// it. Metadata there is none.
type handlerStream struct {
	grpc.ServerStream // nil: there is only what follows
	ctx               context.Context
	send, recv        func(m any) error
}

func (s handlerStream) Context() context.Context { return s.ctx }
func (s handlerStream) SendMsg(m any) error      { return s.send(m) }
func (s handlerStream) RecvMsg(m any) error      { return s.recv(m) }
