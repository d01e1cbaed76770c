// Package callservice has the gRPC service of tests that make calls without generated code.
package callservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
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

// Always is a supply of sessions that has one. Once that has ended, Pick fails.
type Always struct{ Session link.Session }

// Pick returns the session.
func (a Always) Pick(context.Context, bool) (link.Session, error) {
	if link.IsClosed(a.Session.Done()) {
		return nil, status.Error(codes.Unavailable, "no session")
	}
	return a.Session, nil
}

// Streamed is a session without a shortcut for unary calls, like most sessions with other processes.
type Streamed struct{ link.Session }

// Peer implements [link.Session].
func (s Streamed) Peer() *link.Peer {
	p := *s.Session.Peer()
	p.OneShot = false
	return &p
}

// WantCode fails the test unless err has the code want.
func WantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

// Text is a codec of strings.
type Text struct{}

// Name implements [encoding.Codec].
func (Text) Name() string { return "text" }

// Marshal implements [encoding.Codec]. It refuses "unspeakable".
func (Text) Marshal(v any) ([]byte, error) {
	if s := *v.(*string); s != "unspeakable" {
		return []byte(s), nil
	}
	return nil, errors.New("unspeakable")
}

// Unmarshal implements [encoding.Codec]. It refuses "illegible".
func (Text) Unmarshal(data []byte, v any) error {
	if string(data) == "illegible" {
		return errors.New("illegible")
	}
	*v.(*string) = string(data)
	return nil
}
