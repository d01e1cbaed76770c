package flat

import (
	"context"
	"reflect"
	"runtime"
	"sync"
	"weak"

	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// held has the memory of each large message that was received and not released. Its key is the
// address of the table that the message was received into. held does not keep that table alive.
// After the garbage collector has found the table, held forgets the memory and does not free it,
// because tables within the message may be used for longer.
var held sync.Map // of mem.Buffer, by weak.Pointer[byte]

// received records that the table v was received in b. It takes ownership of a reference to b.
func received(v any, b mem.Buffer) {
	at := pointerOf(v)
	key := weak.Make(at)
	if _, again := held.Swap(key, b); !again {
		runtime.AddCleanup(at, func(key weak.Pointer[byte]) { held.Delete(key) }, key)
	}
}

// pointerOf returns the address that v, a pointer, holds.
func pointerOf(v any) *byte {
	return (*byte)(reflect.ValueOf(v).UnsafePointer())
}

// Release frees the memory of a message for another one, if m is the table that the message was
// received into. After that, neither m nor any table, vector or string of its message must be
// used. A release is never necessary, but saves the garbage collector work. Release does nothing
// if m was released before, if its message is small, or if m is nil.
func Release(m flatbuffers.FlatBuffer) {
	if m == nil {
		return
	}
	if b, ok := held.LoadAndDelete(weak.Make(pointerOf(m))); ok {
		b.(mem.Buffer).Free()
	}
}

// ReleaseRequests returns an interceptor that releases the request of each unary call when its
// handler has returned. Handlers must not keep any part of the request, nor reply with it. It must
// come first in the server's chain of interceptors.
func ReleaseRequests() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		reply, err := handler(ctx, req)
		if m, ok := req.(flatbuffers.FlatBuffer); ok {
			Release(m)
		}
		return reply, err
	}
}

// ReleaseStreamRequests is [ReleaseRequests] for streams: it releases each message when the handler
// receives the next one, and the last when the handler has returned.
func ReleaseStreamRequests() grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		r := &requests{ServerStream: s}
		err := handler(srv, r)
		Release(r.last)
		return err
	}
}

// requests is a stream whose requests are released.
type requests struct {
	grpc.ServerStream
	last flatbuffers.FlatBuffer // nil if there is none
}

func (r *requests) RecvMsg(m any) error { return receive(r.ServerStream, &r.last, m) }

// ReleaseStreamReplies returns an interceptor that releases each reply of a stream when the caller
// receives the next one, or the end. The rules of [Release] apply.
func ReleaseStreamReplies() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, err
		}
		return &replies{ClientStream: s}, nil
	}
}

// replies is a stream whose replies are released.
type replies struct {
	grpc.ClientStream
	last flatbuffers.FlatBuffer // nil if there is none
}

func (r *replies) RecvMsg(m any) error { return receive(r.ClientStream, &r.last, m) }

// receive releases *last and receives m, the next message, from s.
func receive(s interface{ RecvMsg(m any) error }, last *flatbuffers.FlatBuffer, m any) error {
	Release(*last)
	*last = nil
	err := s.RecvMsg(m)
	if f, ok := m.(flatbuffers.FlatBuffer); ok && err == nil {
		*last = f
	}
	return err
}
