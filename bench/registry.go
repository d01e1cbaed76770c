package main

import (
	"context"

	"google.golang.org/grpc"
)

// A registry records the services that generated gRPC code registers, for servers of other
// RPC systems.
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

// handlerStream adapts another server's stream to gRPC's generated code. It has no
// metadata.
type handlerStream struct {
	grpc.ServerStream // nil: only the methods below exist
	ctx               context.Context
	send, recv        func(m any) error
}

func (s handlerStream) Context() context.Context { return s.ctx }
func (s handlerStream) SendMsg(m any) error      { return s.send(m) }
func (s handlerStream) RecvMsg(m any) error      { return s.recv(m) }
