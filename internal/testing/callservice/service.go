// Package callservice has the gRPC service of tests that make calls without generated code.
package callservice

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/link"
)

// A Message is a request or a reply.
type Message = wrapperspb.BytesValue

// Handlers are the service's handlers. A nil one echoes.
type Handlers struct {
	Unary  func(context.Context, *Message) (*Message, error)
	Stream func(grpc.ServerStream) error
}

// The names of the service's methods.
const (
	UnaryMethod  = "/test.Service/Unary"
	StreamMethod = "/test.Service/Stream"
)

// StreamDesc describes the streaming method to a client.
var StreamDesc = &grpc.StreamDesc{StreamName: "Stream", ClientStreams: true, ServerStreams: true}

// Desc describes the service, as generated code would. Handlers implement it.
var Desc = grpc.ServiceDesc{
	ServiceName: "test.Service",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(srv any, ctx context.Context, dec func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
		in := new(Message)
		if err := dec(in); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) {
			if h := srv.(Handlers).Unary; h != nil {
				return h(ctx, req.(*Message))
			}
			return req, nil
		}
		if i == nil {
			return handle(ctx, in)
		}
		return i(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: UnaryMethod}, handle)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ClientStreams: true, ServerStreams: true, Handler: func(srv any, ss grpc.ServerStream) error {
		if h := srv.(Handlers).Stream; h != nil {
			return h(ss)
		}
		for {
			in := new(Message)
			if err := ss.RecvMsg(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := ss.SendMsg(in); err != nil {
				return err
			}
		}
	}}},
}

// Show returns md as text, with its keys in order.
func Show(md metadata.MD) string { return fmt.Sprintf("%q", map[string][]string(md)) }

// Distant is a session with a peer in another process, of which only Peer works.
type Distant struct{ link.Session }

// Peer implements [link.Session].
func (Distant) Peer() *link.Peer { return &link.Peer{} }

// Reports is what call options are told of a call.
type Reports struct {
	Header, Trailer metadata.MD
	Peer            peer.Peer
	Ends            []error
}

// Options returns the options.
func (r *Reports) Options() []grpc.CallOption {
	return []grpc.CallOption{grpc.Header(&r.Header), grpc.Trailer(&r.Trailer), grpc.Peer(&r.Peer), grpc.OnFinish(func(err error) { r.Ends = append(r.Ends, err) })}
}
