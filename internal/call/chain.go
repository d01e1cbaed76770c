package call

import (
	"context"

	"google.golang.org/grpc"
)

// chainUnaryServer chains the given interceptors into one, with the first outermost. It returns
// nil if there are none.
func chainUnaryServer(all []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	first, rest := all[0], chainUnaryServer(all[1:])
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return first(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return rest(ctx, req, info, handler)
		})
	}
}

// chainStreamServer is chainUnaryServer for streams.
func chainStreamServer(all []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	first, rest := all[0], chainStreamServer(all[1:])
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return first(srv, ss, info, func(srv any, ss grpc.ServerStream) error {
			return rest(srv, ss, info, handler)
		})
	}
}

// chainUnaryClient is chainUnaryServer for clients.
func chainUnaryClient(all []grpc.UnaryClientInterceptor) grpc.UnaryClientInterceptor {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	first, rest := all[0], chainUnaryClient(all[1:])
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return first(ctx, method, req, reply, cc, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
			return rest(ctx, method, req, reply, cc, invoker, opts...)
		}, opts...)
	}
}

// chainStreamClient is chainUnaryServer for clients' streams.
func chainStreamClient(all []grpc.StreamClientInterceptor) grpc.StreamClientInterceptor {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	first, rest := all[0], chainStreamClient(all[1:])
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return first(ctx, desc, cc, method, func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return rest(ctx, desc, cc, method, streamer, opts...)
		}, opts...)
	}
}
