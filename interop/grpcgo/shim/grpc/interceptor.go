package grpc

import (
	"context"

	g "google.golang.org/grpc"
)

// Client interceptors get a *ClientConn, so these types cannot be aliases.
type (
	UnaryInvoker            func(ctx context.Context, method string, req, reply any, cc *ClientConn, opts ...g.CallOption) error
	UnaryClientInterceptor  func(ctx context.Context, method string, req, reply any, cc *ClientConn, invoker UnaryInvoker, opts ...g.CallOption) error
	Streamer                func(ctx context.Context, desc *g.StreamDesc, cc *ClientConn, method string, opts ...g.CallOption) (g.ClientStream, error)
	StreamClientInterceptor func(ctx context.Context, desc *g.StreamDesc, cc *ClientConn, method string, streamer Streamer, opts ...g.CallOption) (g.ClientStream, error)
)

// grpcs returns grpc-go's form of i.
func (i UnaryClientInterceptor) grpcs() g.UnaryClientInterceptor {
	if i == nil {
		return nil
	}
	return func(ctx context.Context, method string, req, reply any, cc *g.ClientConn, invoker g.UnaryInvoker, opts ...g.CallOption) error {
		next := func(ctx context.Context, method string, req, reply any, _ *ClientConn, opts ...g.CallOption) error {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		return i(ctx, method, req, reply, clientOf(cc), next, opts...)
	}
}

// grpcs returns grpc-go's form of i.
func (i StreamClientInterceptor) grpcs() g.StreamClientInterceptor {
	if i == nil {
		return nil
	}
	return func(ctx context.Context, desc *g.StreamDesc, cc *g.ClientConn, method string, streamer g.Streamer, opts ...g.CallOption) (g.ClientStream, error) {
		next := func(ctx context.Context, desc *g.StreamDesc, _ *ClientConn, method string, opts ...g.CallOption) (g.ClientStream, error) {
			return streamer(ctx, desc, cc, method, opts...)
		}
		return i(ctx, desc, clientOf(cc), method, next, opts...)
	}
}
