package nearcall

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
)

// grpcFacade returns the *grpc.ClientConn that interceptors are shown. It has
// the connection's target, and its calls come back here; it never connects.
func (c *ClientConn) grpcFacade() *grpc.ClientConn {
	c.facadeMu.Lock()
	defer c.facadeMu.Unlock()
	if c.facade == nil {
		c.facade = c.newFacade()
		if c.closed {
			_ = c.facade.Close()
		}
	}
	return c.facade
}

func (c *ClientConn) newFacade() *grpc.ClientConn {
	unary := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return c.Invoke(ctx, method, req, reply, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.NewStream(ctx, desc, method, opts...)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream),
		grpc.WithResolvers(nowhere{schemeInproc}, nowhere{schemeTCP}, nowhere{schemeUnix}, nowhere{schemeUnixAbstract}, nowhere{schemeShm}), grpc.WithIdleTimeout(0),
	}
	facade, err := grpc.NewClient(c.target, opts...)
	if err != nil {
		// grpc-go cannot parse the target. It is shown another rather than nothing.
		facade, _ = grpc.NewClient(schemeInproc+":", opts...)
	}
	return facade
}

// nowhere resolves targets of its scheme to nothing, for ever.
type nowhere struct{ scheme string }

func (n nowhere) Scheme() string { return n.scheme }

func (n nowhere) Build(resolver.Target, resolver.ClientConn, resolver.BuildOptions) (resolver.Resolver, error) {
	return n, nil
}

func (nowhere) ResolveNow(resolver.ResolveNowOptions) {}
func (nowhere) Close()                                {}
