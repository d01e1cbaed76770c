//lint:file-ignore SA1019 grpc-go's tests use options that are deprecated.

package grpc

import (
	"context"
	"net"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"
)

// Client options that both libraries have under the same name.

func WithInitialWindowSize(n int32) DialOption {
	return onClient(g.WithInitialWindowSize(n), nearcall.WithInitialWindowSize(n))
}

func WithInitialConnWindowSize(n int32) DialOption {
	return onClient(g.WithInitialConnWindowSize(n), nearcall.WithInitialConnWindowSize(n))
}

func WithDefaultCallOptions(opts ...g.CallOption) DialOption {
	return onClient(g.WithDefaultCallOptions(opts...), nearcall.WithDefaultCallOptions(opts...))
}

func WithConnectParams(p g.ConnectParams) DialOption {
	return onClient(g.WithConnectParams(p), nearcall.WithConnectParams(p))
}

func WithTransportCredentials(c credentials.TransportCredentials) DialOption {
	return withCredentials(c != nil && c.Info().SecurityProtocol != "insecure",
		onClient(g.WithTransportCredentials(c), nearcall.WithTransportCredentials(c)))
}

func WithPerRPCCredentials(c credentials.PerRPCCredentials) DialOption {
	return onClient(g.WithPerRPCCredentials(c), nearcall.WithPerRPCCredentials(c))
}

func WithCredentialsBundle(b credentials.Bundle) DialOption {
	return withCredentials(true, onClient(g.WithCredentialsBundle(b), nearcall.WithCredentialsBundle(b)))
}

func withCredentials(secure bool, opt DialOption) DialOption {
	o := opt.client()
	o.secure = []bool{secure}
	return o
}

func WithContextDialer(dial func(context.Context, string) (net.Conn, error)) DialOption {
	return onClient(g.WithContextDialer(dial), nearcall.WithContextDialer(dial))
}

func WithStatsHandler(h stats.Handler) DialOption {
	return onClient(g.WithStatsHandler(h), nearcall.WithStatsHandler(h))
}

func WithUserAgent(ua string) DialOption {
	return onClient(g.WithUserAgent(ua), nearcall.WithUserAgent(ua))
}

func WithKeepaliveParams(p keepalive.ClientParameters) DialOption {
	return onClient(g.WithKeepaliveParams(p), nearcall.WithKeepaliveParams(p))
}

func WithAuthority(name string) DialOption {
	return onClient(g.WithAuthority(name), nearcall.WithAuthority(name))
}

func WithDefaultServiceConfig(json string) DialOption {
	return onClient(g.WithDefaultServiceConfig(json), nearcall.WithDefaultServiceConfig(json))
}

func WithMaxHeaderListSize(n uint32) DialOption {
	return onClient(g.WithMaxHeaderListSize(n), nearcall.WithMaxHeaderListSize(n))
}

func WithIdleTimeout(d time.Duration) DialOption {
	return onClient(g.WithIdleTimeout(d), nearcall.WithIdleTimeout(d))
}

func WithMaxCallAttempts(n int) DialOption {
	return onClient(g.WithMaxCallAttempts(n), nearcall.WithMaxCallAttempts(n))
}

func WithDisableRetry() DialOption {
	return onClient(g.WithDisableRetry(), nearcall.WithDisableRetry())
}

func WithUnaryInterceptor(i UnaryClientInterceptor) DialOption {
	return onClient(g.WithUnaryInterceptor(i.grpcs()), nearcall.WithUnaryInterceptor(i.grpcs()))
}

func WithStreamInterceptor(i StreamClientInterceptor) DialOption {
	return onClient(g.WithStreamInterceptor(i.grpcs()), nearcall.WithStreamInterceptor(i.grpcs()))
}

func WithChainUnaryInterceptor(is ...UnaryClientInterceptor) DialOption {
	var chain []g.UnaryClientInterceptor
	for _, i := range is {
		chain = append(chain, i.grpcs())
	}
	return onClient(g.WithChainUnaryInterceptor(chain...), nearcall.WithChainUnaryInterceptor(chain...))
}

func WithChainStreamInterceptor(is ...StreamClientInterceptor) DialOption {
	var chain []g.StreamClientInterceptor
	for _, i := range is {
		chain = append(chain, i.grpcs())
	}
	return onClient(g.WithChainStreamInterceptor(chain...), nearcall.WithChainStreamInterceptor(chain...))
}

// Client options that nearcall has under another name.

func WithStaticStreamWindowSize(n int32) DialOption {
	return onClient(g.WithStaticStreamWindowSize(n), nearcall.WithInitialWindowSize(n))
}

func WithMaxMsgSize(n int) DialOption {
	return onClient(g.WithMaxMsgSize(n), nearcall.WithDefaultCallOptions(g.MaxCallRecvMsgSize(n)))
}

func WithCompressor(c g.Compressor) DialOption {
	return onClient(g.WithCompressor(c), nearcall.WithDefaultCallOptions(g.UseCompressor(c.Type())))
}

func WithDialer(dial func(string, time.Duration) (net.Conn, error)) DialOption {
	return onClient(g.WithDialer(dial), nearcall.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		if d, ok := ctx.Deadline(); ok {
			return dial(addr, time.Until(d))
		}
		return dial(addr, 0)
	}))
}

// Client options that do nothing for nearcall's own targets.

func WithStaticConnWindowSize(n int32) DialOption {
	return forTransport(g.WithStaticConnWindowSize(n))
}

func WithSharedWriteBuffer(share bool) DialOption {
	return forTransport(g.WithSharedWriteBuffer(share))
}

func WithWriteBufferSize(n int) DialOption {
	return forTransport(g.WithWriteBufferSize(n))
}

func WithReadBufferSize(n int) DialOption {
	return forTransport(g.WithReadBufferSize(n))
}

func WithDecompressor(d g.Decompressor) DialOption {
	return onClient(g.WithDecompressor(d))
}

func WithBackoffMaxDelay(d time.Duration) DialOption {
	return WithBackoffConfig(g.BackoffConfig{MaxDelay: d})
}

func WithBackoffConfig(b g.BackoffConfig) DialOption {
	p := g.ConnectParams{Backoff: backoff.DefaultConfig}
	p.Backoff.MaxDelay = b.MaxDelay
	return onClient(g.WithBackoffConfig(b), nearcall.WithConnectParams(p))
}

func WithTimeout(d time.Duration) DialOption {
	return forTransport(g.WithTimeout(d))
}

func FailOnNonTempDialError(fail bool) DialOption {
	return forTransport(g.FailOnNonTempDialError(fail))
}

func WithBlock() DialOption {
	return forTransport(g.WithBlock())
}

func WithReturnConnectionError() DialOption {
	return forTransport(g.WithReturnConnectionError())
}

func WithNoProxy() DialOption {
	return onClient(g.WithNoProxy(), nearcall.WithNoProxy())
}

func WithLocalDNSResolution() DialOption {
	return onClient(g.WithLocalDNSResolution())
}

func WithDisableServiceConfig() DialOption {
	return onClient(g.WithDisableServiceConfig(), nearcall.WithDisableServiceConfig())
}

func WithDisableHealthCheck() DialOption {
	return onClient(g.WithDisableHealthCheck(), nearcall.WithDisableHealthCheck())
}

// WithResolvers registers resolvers with the client: see resolved.go.
func WithResolvers(rs ...resolver.Builder) DialOption {
	o := onClient(g.WithResolvers(rs...), nearcall.WithResolvers(rs...)).client()
	if near.On.OnePath() {
		o.near = nil
	}
	o.resolvers = rs
	return o
}

// WithCodec is an option that nearcall does not have.
func WithCodec(c g.Codec) DialOption {
	return dialOption{grpc: []g.DialOption{g.WithCodec(c)}, missing: "WithCodec"}
}
