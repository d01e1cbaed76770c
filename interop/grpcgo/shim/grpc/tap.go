package grpc

import (
	"context"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// InTapHandle is implemented by two interceptors for clients of nearcall.
func InTapHandle(h tap.ServerInHandle) ServerOption {
	if near.On == near.Ordinary {
		return onServer(g.InTapHandle(h))
	}
	return onServer(g.InTapHandle(h), nearcall.ChainUnaryInterceptor(tapUnary(h)), nearcall.ChainStreamInterceptor(tapStream(h)))
}

func tapUnary(h tap.ServerInHandle) g.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *g.UnaryServerInfo, handler g.UnaryHandler) (any, error) {
		ctx, err := tapCall(ctx, h, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

func tapStream(h tap.ServerInHandle) g.StreamServerInterceptor {
	return func(srv any, ss g.ServerStream, info *g.StreamServerInfo, handler g.StreamHandler) error {
		ctx, err := tapCall(ss.Context(), h, info.FullMethod)
		if err != nil {
			return err
		}
		return handler(srv, tappedStream{ss, ctx})
	}
}

func tapCall(ctx context.Context, h tap.ServerInHandle, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	ctx, err := h(ctx, &tap.Info{FullMethodName: method, Header: md})
	if err == nil {
		return ctx, nil
	}
	if _, ok := status.FromError(err); !ok {
		err = status.Error(codes.PermissionDenied, err.Error())
	}
	return nil, err
}

type tappedStream struct {
	g.ServerStream
	ctx context.Context
}

func (s tappedStream) Context() context.Context { return s.ctx }
