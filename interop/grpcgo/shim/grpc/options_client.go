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
	"google.golang.org/grpc/resolver"
)

// Client options that both libraries have under the same name.

var (
	WithInitialWindowSize     = client2(g.WithInitialWindowSize, nearcall.WithInitialWindowSize)
	WithInitialConnWindowSize = client2(g.WithInitialConnWindowSize, nearcall.WithInitialConnWindowSize)
	WithConnectParams         = client2(g.WithConnectParams, nearcall.WithConnectParams)
	WithPerRPCCredentials     = client2(g.WithPerRPCCredentials, nearcall.WithPerRPCCredentials)
	WithContextDialer         = client2(g.WithContextDialer, nearcall.WithContextDialer)
	WithStatsHandler          = client2(g.WithStatsHandler, nearcall.WithStatsHandler)
	WithUserAgent             = client2(g.WithUserAgent, nearcall.WithUserAgent)
	WithKeepaliveParams       = client2(g.WithKeepaliveParams, nearcall.WithKeepaliveParams)
	WithAuthority             = client2(g.WithAuthority, nearcall.WithAuthority)
	WithDefaultServiceConfig  = client2(g.WithDefaultServiceConfig, nearcall.WithDefaultServiceConfig)
	WithMaxHeaderListSize     = client2(g.WithMaxHeaderListSize, nearcall.WithMaxHeaderListSize)
	WithIdleTimeout           = client2(g.WithIdleTimeout, nearcall.WithIdleTimeout)
	WithMaxCallAttempts       = client2(g.WithMaxCallAttempts, nearcall.WithMaxCallAttempts)
	WithDefaultCallOptions    = clientN(g.WithDefaultCallOptions, nearcall.WithDefaultCallOptions)
	WithDisableRetry          = client0(g.WithDisableRetry, nearcall.WithDisableRetry)
	WithNoProxy               = client0(g.WithNoProxy, nearcall.WithNoProxy)
	WithDisableServiceConfig  = client0(g.WithDisableServiceConfig, nearcall.WithDisableServiceConfig)
	WithDisableHealthCheck    = client0(g.WithDisableHealthCheck, nearcall.WithDisableHealthCheck)
)

func WithTransportCredentials(c credentials.TransportCredentials) DialOption {
	return withCredentials(c != nil && c.Info().SecurityProtocol != "insecure",
		onClient(g.WithTransportCredentials(c), nearcall.WithTransportCredentials(c)))
}

func WithCredentialsBundle(b credentials.Bundle) DialOption {
	return withCredentials(true, onClient(g.WithCredentialsBundle(b), nearcall.WithCredentialsBundle(b)))
}

func withCredentials(secure bool, opt DialOption) DialOption {
	o := opt.client()
	o.secure = []bool{secure}
	return o
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

var (
	WithStaticStreamWindowSize = client2(g.WithStaticStreamWindowSize, nearcall.WithInitialWindowSize)
)

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

var (
	WithStaticConnWindowSize = transport1(g.WithStaticConnWindowSize)
	WithSharedWriteBuffer    = transport1(g.WithSharedWriteBuffer)
	WithWriteBufferSize      = transport1(g.WithWriteBufferSize)
	WithReadBufferSize       = transport1(g.WithReadBufferSize)
	WithDecompressor         = client1(g.WithDecompressor)
	WithTimeout              = transport1(g.WithTimeout)
	FailOnNonTempDialError   = transport1(g.FailOnNonTempDialError)
)

func WithBlock() DialOption                 { return forTransport(g.WithBlock()) }
func WithReturnConnectionError() DialOption { return forTransport(g.WithReturnConnectionError()) }
func WithLocalDNSResolution() DialOption    { return onClient(g.WithLocalDNSResolution()) }

func WithBackoffMaxDelay(d time.Duration) DialOption {
	return WithBackoffConfig(g.BackoffConfig{MaxDelay: d})
}

func WithBackoffConfig(b g.BackoffConfig) DialOption {
	p := g.ConnectParams{Backoff: backoff.DefaultConfig}
	p.Backoff.MaxDelay = b.MaxDelay
	return onClient(g.WithBackoffConfig(b), nearcall.WithConnectParams(p))
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
