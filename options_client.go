package nearcall

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/options"
)

// A DialOption configures [NewClient] and [Server.Client]. Options have the names and
// the meaning that they have in grpc-go, and are passed on for targets that go to
// grpc-go. For options of grpc-go that are missing here see [WithGRPCDialOptions].
type DialOption = options.DialOption

// WithUnaryInterceptor sets the outermost interceptor of unary calls. If it is given
// more than once the last one counts.
//
// Interceptors get the *grpc.ClientConn that [ClientConn.GRPC] returns.
func WithUnaryInterceptor(i grpc.UnaryClientInterceptor) DialOption {
	return options.SetClient(func(o *options.Client) { o.UnaryFirst = i }, grpc.WithUnaryInterceptor(i))
}

// WithChainUnaryInterceptor adds interceptors of unary calls, the first one outermost.
func WithChainUnaryInterceptor(is ...grpc.UnaryClientInterceptor) DialOption {
	return options.SetClient(func(o *options.Client) { o.ClientUnaryChain = append(o.ClientUnaryChain, is...) }, grpc.WithChainUnaryInterceptor(is...))
}

// WithStreamInterceptor sets the outermost interceptor of streams. If it is given more
// than once the last one counts.
func WithStreamInterceptor(i grpc.StreamClientInterceptor) DialOption {
	return options.SetClient(func(o *options.Client) { o.StreamFirst = i }, grpc.WithStreamInterceptor(i))
}

// WithChainStreamInterceptor adds interceptors of streams, the first one outermost.
func WithChainStreamInterceptor(is ...grpc.StreamClientInterceptor) DialOption {
	return options.SetClient(func(o *options.Client) { o.ClientStreamChain = append(o.ClientStreamChain, is...) }, grpc.WithChainStreamInterceptor(is...))
}

// WithStatsHandler adds a stats handler. It can be given more than once. A nil handler is ignored.
func WithStatsHandler(h stats.Handler) DialOption {
	return options.SetClient(func(o *options.Client) {
		if h != nil {
			o.ClientStats = append(o.ClientStats, h)
		}
	}, grpc.WithStatsHandler(h))
}

// WithTransportCredentials sets the credentials of connections to other processes.
//
// A tcp: target requires credentials, except for localhost and literal loopback addresses.
// Credentials of [google.golang.org/grpc/credentials/insecure] count as none. A unix: target
// requires no credentials. It counts as private, as with grpc-go's local credentials, even if
// insecure credentials are set. In process a connection is always private. A wss: target
// accepts only credentials from [NewTLS]. Per-RPC credentials that require transport security
// are sent over private connections.
func WithTransportCredentials(creds credentials.TransportCredentials) DialOption {
	return options.SetClient(func(o *options.Client) { o.TransportCreds = creds }, grpc.WithTransportCredentials(creds))
}

// WithCredentialsBundle combines [WithTransportCredentials] and
// [WithPerRPCCredentials]. It cannot be used together with WithTransportCredentials.
func WithCredentialsBundle(b credentials.Bundle) DialOption {
	return options.SetClient(func(o *options.Client) {
		o.BundleCreds = b
		if creds := b.PerRPCCredentials(); creds != nil {
			o.PerRPC = append(o.PerRPC, creds)
		}
	}, grpc.WithCredentialsBundle(b))
}

// WithPerRPCCredentials adds credentials to every call.
func WithPerRPCCredentials(creds credentials.PerRPCCredentials) DialOption {
	return options.SetClient(func(o *options.Client) { o.PerRPC = append(o.PerRPC, creds) }, grpc.WithPerRPCCredentials(creds))
}

// WithDefaultCallOptions sets call options that are applied before those of each call.
func WithDefaultCallOptions(opts ...grpc.CallOption) DialOption {
	return options.SetClient(func(o *options.Client) { o.DefaultOptions = append(o.DefaultOptions, opts...) }, grpc.WithDefaultCallOptions(opts...))
}

// WithDefaultServiceConfig sets gRPC's service config, in JSON. On nearcall's own targets these
// parts apply: retryThrottling and, in methodConfig, timeout, waitForReady, the message sizes and
// retryPolicy. With an invalid config [NewClient] fails, and the calls of [Server.Client] fail.
func WithDefaultServiceConfig(json string) DialOption {
	return options.SetClient(func(o *options.Client) { o.ConfigJSON = &json }, grpc.WithDefaultServiceConfig(json))
}

// WithDisableRetry disables retries by a service config's retryPolicy. Calls that no
// handler has seen are still retried.
func WithDisableRetry() DialOption {
	return options.SetClient(func(o *options.Client) { o.NoRetry = true }, grpc.WithDisableRetry())
}

// WithMaxCallAttempts limits the attempts of a call, the first included, if its retryPolicy
// allows more. The default is 5. Values below 2 select the default.
func WithMaxCallAttempts(n int) DialOption {
	return options.SetClient(func(o *options.Client) { o.MaxCallAttempts = n }, grpc.WithMaxCallAttempts(n))
}

// WithIdleTimeout sets how long a connection without calls stays open. After that time, or up to a
// quarter later, it is closed and becomes idle: it does not reconnect before the next call or
// [ClientConn.Connect]. The default is 30 minutes; 0 disables the timeout, and a negative one is as
// short as possible. In process it has no effect: an idle connection holds nothing worth closing.
func WithIdleTimeout(d time.Duration) DialOption {
	return options.SetClient(func(o *options.Client) {
		if o.IdleAfter = d; d < 0 {
			o.IdleAfter = 1 // as in grpc-go
		}
	}, grpc.WithIdleTimeout(d))
}

// WithDisableSharedMemory makes connections stay sockets: those of unix: targets, which become
// shared memory on Linux if the server has the same user and agrees, and those of HOST:PORT to this
// host. With shared memory the network of the call's peer address is "shm". It has no effect on
// shm: targets.
func WithDisableSharedMemory() DialOption {
	return options.SetClient(func(o *options.Client) { o.NoSharedMemory = true })
}

// WithMaxSharedMemory limits the shared memory that the client's connection uses, in bytes. The
// default is 128 MiB; 0 and less leave no room for any. [WithDisableSharedMemory] turns it off.
//
// A connection uses 260 KiB. While it sends messages of 32 KiB or more it uses up to 64 MiB more,
// which it releases 5 seconds after the last of them. After a reconnect, an old connection stays
// until its calls have ended, and its 260 KiB can take the total above the limit. The server's use
// is limited by [MaxSharedMemory].
//
// At the limit large messages are sent in pieces. If the limit is too low for a connection, unix:
// targets stay sockets and calls of shm: targets fail. When a connection ends, large messages that
// have arrived count towards a second limit of the same size until the program receives them.
// Messages beyond the limit are lost: receiving one fails with ResourceExhausted.
func WithMaxSharedMemory(bytes int64) DialOption {
	return options.SetClient(func(o *options.Client) { o.MaxMemory = max(bytes, 1) })
}

// WithDisableSpinning makes callers that wait for a reply from another process block in the system at
// once: see [DisableSpinning].
func WithDisableSpinning() DialOption {
	return options.SetClient(func(o *options.Client) { o.NoSpinning = true })
}

// WithConnectParams sets the backoff between connection attempts, and how long an attempt can take
// before it fails. For tcp: targets the backoff is gRPC's by default: 1 s, growing by a factor of
// 1.6 up to 120 s. For nearcall's other targets, which have no network in between, it is 20 ms,
// growing by 1.6 up to 1 s. As in grpc-go, an attempt can take p.MinConnectTimeout or as long as
// the backoff after it, whichever is longer. Without this option MinConnectTimeout is 20 s, and in
// p it is 0 by default.
func WithConnectParams(p grpc.ConnectParams) DialOption {
	return options.SetClient(func(o *options.Client) { o.ConnectBackoff, o.ConnectTimeout = &p.Backoff, p.MinConnectTimeout }, grpc.WithConnectParams(p))
}

// WithInitialWindowSize sets the flow-control window of a stream, as [InitialWindowSize] does for the
// other direction: it limits how many bytes a handler can send before the caller has received them.
func WithInitialWindowSize(bytes int32) DialOption {
	return options.SetClient(func(o *options.Client) { o.Given.StreamBytes = bytes }, grpc.WithInitialWindowSize(bytes))
}

// WithMaxHeaderListSize limits the size of a response's header, and separately that of its
// trailer, in bytes, by the rules of [MaxHeaderListSize]. A call whose header or trailer is larger
// fails with Internal.
func WithMaxHeaderListSize(bytes uint32) DialOption {
	return options.SetClient(func(o *options.Client) { o.Given.HeaderBytes = bytes }, grpc.WithMaxHeaderListSize(bytes))
}

// WithUserAgent prepends ua to the user-agent that handlers see.
func WithUserAgent(ua string) DialOption {
	return options.SetClient(func(o *options.Client) { o.AgentPrefix = ua }, grpc.WithUserAgent(ua))
}

// WithAuthority sets the :authority that handlers see. The server's certificate must be valid for
// it. The default is the server name of the transport credentials if they have one; otherwise it is
// NAME of an inproc: target, HOST:PORT of a tcp: target, and localhost for unix: and shm: targets.
func WithAuthority(authority string) DialOption {
	return options.SetClient(func(o *options.Client) { o.UserAuthority = authority }, grpc.WithAuthority(authority))
}

// WithImmutableMessages promises that the client program does not modify a message after
// it was sent or received on this connection. See [ImmutableMessages].
func WithImmutableMessages() DialOption {
	return options.SetClient(func(o *options.Client) { o.ClientImmutable = true })
}

// WithKeepaliveParams sets the client's keepalive. As in gRPC, pings are sent only if p.Time is
// set, and a connection without calls is pinged only if p.PermitWithoutStream is set. Time is at
// least 10 s; Timeout is 20 s by default. The client increases Time if the server's
// [KeepaliveEnforcementPolicy] requires it. In process the option has no effect.
func WithKeepaliveParams(p keepalive.ClientParameters) DialOption {
	return options.SetClient(func(o *options.Client) { o.Given.Client = p }, grpc.WithKeepaliveParams(p))
}

// WithInitialConnWindowSize sets the flow-control window of a connection, as [InitialConnWindowSize]
// does for the other direction.
func WithInitialConnWindowSize(bytes int32) DialOption {
	return options.SetClient(func(o *options.Client) { o.Given.ConnBytes = bytes }, grpc.WithInitialConnWindowSize(bytes))
}

// WithContextDialer sets the function that opens connections to other processes. As in grpc-go,
// dial gets HOST:PORT for a tcp: target, unix:///PATH for a unix: target with an absolute path,
// and unix:PATH for one with a relative path. Which credentials are required depends on the
// target, not on the connection that dial returns.
//
// dial can also return a connection that the program already has, and whose other end
// [Server.ServeConn] serves. In that case the program can choose any name in the target. If both
// ends are on this machine, use unix:NAME: it requires no credentials, and a unix socket becomes
// shared memory. For a stream to another machine, use tcp:HOST:PORT with credentials for HOST. For
// targets of grpc-go, dial gets the same address as from grpc-go. Calls stay on the connection
// that it returns, and end if the program closes that. dial is called again when the connection
// was lost, and after [WithIdleTimeout] without a call. If the program has no other connection at
// that time, dial must return an error. WithIdleTimeout(0) keeps the first connection open. The
// client asks the other end which protocol it speaks. Within a WebSocket that is not possible: use
// a ws:// target, whose dialer opens the TCP connection below.
func WithContextDialer(dial func(context.Context, string) (net.Conn, error)) DialOption {
	return options.SetClient(func(o *options.Client) { o.ConnDialer = dial }, grpc.WithContextDialer(dial))
}

// WithResolvers adds name resolvers. They precede the registered ones. They affect only targets
// that are not nearcall's own.
func WithResolvers(rs ...resolver.Builder) DialOption {
	return options.SetClient(func(o *options.Client) { o.UserResolvers = append(o.UserResolvers, rs...) }, grpc.WithResolvers(rs...))
}

// WithDisableServiceConfig makes the client ignore service configs from resolvers.
func WithDisableServiceConfig() DialOption { return forChannelToo(grpc.WithDisableServiceConfig()) }

// WithDisableHealthCheck turns off the health checks that a service config's healthCheckConfig asks
// for.
func WithDisableHealthCheck() DialOption { return forChannelToo(grpc.WithDisableHealthCheck()) }

// WithNoProxy makes the client ignore the proxies that the environment names. By default, targets
// that are not nearcall's own use them, as in grpc-go. The variable HTTPS_PROXY also turns off
// addresses of resolvers that are targets of nearcall's, such as inproc:NAME.
func WithNoProxy() DialOption {
	return options.SetClient(func(o *options.Client) {
		o.NoEnvProxy = true
		o.ChannelOptions = append(o.ChannelOptions, grpc.WithNoProxy())
	}, grpc.WithNoProxy())
}

func forChannelToo(opt grpc.DialOption) DialOption {
	return options.SetClient(func(o *options.Client) { o.ChannelOptions = append(o.ChannelOptions, opt) }, opt)
}

// WithGRPCDialOptions passes options to grpc-go. Targets that are not nearcall's own then go to
// grpc-go as a whole, as grpc:TARGET does, because nearcall cannot read the options.
// NewClient logs that.
func WithGRPCDialOptions(opts ...grpc.DialOption) DialOption {
	return options.SetClient(func(o *options.Client) { o.WholeToGRPC = true }, opts...)
}
