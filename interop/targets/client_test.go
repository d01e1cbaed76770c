package targets

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall"
)

// Options are what a case sets of its client. Zero values mean the default.
type Options struct {
	Resolvers            []resolver.Builder
	Creds                credentials.TransportCredentials // nil means those of the setup
	ServiceConfig        string                           // the default one
	DisableServiceConfig bool
	DisableHealthCheck   bool
	DisableRetry         bool
	NoProxy              bool
	Backoff              time.Duration // between attempts to connect; 0 means 20 ms
	ConnectTimeout       time.Duration // for an attempt; 0 means 20 s
	IdleTimeout          time.Duration // 0 means none
	Authority            string
	UserAgent            string
	Stats                []stats.Handler
	CallOptions          []grpc.CallOption
	PerRPC               []credentials.PerRPCCredentials
	Unary                []grpc.UnaryClientInterceptor
	Stream               []grpc.StreamClientInterceptor
	Dialer               func(context.Context, string) (net.Conn, error)
}

// never is a backoff that only ResetConnectBackoff ends.
const never = time.Hour

func (o *Options) connectParams() grpc.ConnectParams {
	delay := o.Backoff
	if delay == 0 {
		delay = 20 * time.Millisecond
	}
	timeout := o.ConnectTimeout
	if timeout == 0 {
		timeout = 20 * time.Second
	}
	return grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: delay, Multiplier: 1, MaxDelay: delay}, MinConnectTimeout: timeout}
}

// A Client is a *grpc.ClientConn or a *nearcall.ClientConn.
type Client interface {
	grpc.ClientConnInterface
	Close() error
	Connect()
	ResetConnectBackoff()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
	Target() string
}

// A dialer makes clients.
type dialer struct {
	dial func(target string, o Options) (Client, error)
	near bool // it knows nearcall's schemes
}

var (
	grpcClient     = dialer{dialGRPC, false} // the oracle
	nearcallClient = dialer{dialNearcall, true}
)

func dialGRPC(target string, o Options) (Client, error) {
	opts := []grpc.DialOption{grpc.WithResolvers(o.Resolvers...), grpc.WithTransportCredentials(o.Creds),
		grpc.WithConnectParams(o.connectParams()), grpc.WithIdleTimeout(o.IdleTimeout)}
	if o.ServiceConfig != "" {
		opts = append(opts, grpc.WithDefaultServiceConfig(o.ServiceConfig))
	}
	if o.DisableRetry {
		opts = append(opts, grpc.WithDisableRetry())
	}
	if o.DisableServiceConfig {
		opts = append(opts, grpc.WithDisableServiceConfig())
	}
	if o.DisableHealthCheck {
		opts = append(opts, grpc.WithDisableHealthCheck())
	}
	if o.NoProxy {
		opts = append(opts, grpc.WithNoProxy())
	}
	if o.Authority != "" {
		opts = append(opts, grpc.WithAuthority(o.Authority))
	}
	if o.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(o.UserAgent))
	}
	for _, h := range o.Stats {
		opts = append(opts, grpc.WithStatsHandler(h))
	}
	for _, p := range o.PerRPC {
		opts = append(opts, grpc.WithPerRPCCredentials(p))
	}
	if o.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(o.Dialer))
	}
	return checked(grpc.NewClient(target, append(opts, grpc.WithDefaultCallOptions(o.CallOptions...),
		grpc.WithChainUnaryInterceptor(o.Unary...), grpc.WithChainStreamInterceptor(o.Stream...))...))
}

func dialNearcall(target string, o Options) (Client, error) {
	opts := []nearcall.DialOption{nearcall.WithResolvers(o.Resolvers...), nearcall.WithTransportCredentials(o.Creds),
		nearcall.WithConnectParams(o.connectParams()), nearcall.WithIdleTimeout(o.IdleTimeout)}
	if o.ServiceConfig != "" {
		opts = append(opts, nearcall.WithDefaultServiceConfig(o.ServiceConfig))
	}
	if o.DisableRetry {
		opts = append(opts, nearcall.WithDisableRetry())
	}
	if o.DisableServiceConfig {
		opts = append(opts, nearcall.WithDisableServiceConfig())
	}
	if o.DisableHealthCheck {
		opts = append(opts, nearcall.WithDisableHealthCheck())
	}
	if o.NoProxy {
		opts = append(opts, nearcall.WithNoProxy())
	}
	if o.Authority != "" {
		opts = append(opts, nearcall.WithAuthority(o.Authority))
	}
	if o.UserAgent != "" {
		opts = append(opts, nearcall.WithUserAgent(o.UserAgent))
	}
	for _, h := range o.Stats {
		opts = append(opts, nearcall.WithStatsHandler(h))
	}
	for _, p := range o.PerRPC {
		opts = append(opts, nearcall.WithPerRPCCredentials(p))
	}
	if o.Dialer != nil {
		opts = append(opts, nearcall.WithContextDialer(o.Dialer))
	}
	return checked(nearcall.NewClient(target, append(opts, nearcall.WithDefaultCallOptions(o.CallOptions...),
		nearcall.WithChainUnaryInterceptor(o.Unary...), nearcall.WithChainStreamInterceptor(o.Stream...))...))
}

// checked makes a nil interface of a nil pointer.
func checked[T interface {
	comparable
	Client
}](client T, err error) (Client, error) {
	var none T
	if client == none {
		return nil, err
	}
	return client, err
}
