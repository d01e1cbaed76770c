package nearcall

import (
	"context"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// A DialOption configures [NewClient] and [Server.Client]. Options have the names and
// the meaning that they have in grpc-go, and are passed on for targets that go to
// grpc-go. For options of grpc-go that are missing here see [WithGRPCDialOptions].
type DialOption interface{ applyDial(*dialOptions) }

type dialOptions struct {
	call.ClientConfig
	unaryFirst    grpc.UnaryClientInterceptor
	streamFirst   grpc.StreamClientInterceptor
	transport     credentials.TransportCredentials
	bundle        credentials.Bundle
	socket        sock.Options
	serviceConfig *string                                         // JSON, as the user passed it
	attempts      int                                             // the most attempts of a call
	noRetry       bool                                            // by retry policies
	memory        int64                                           // limit of shared memory, in bytes
	dial          func(context.Context, string) (net.Conn, error) // replaces net.Dialer unless nil
	backoff       *backoff.Config                                 // nil for the default of the target
	timeout       time.Duration                                   // the minimum time of a connection attempt
	idle          time.Duration                                   // after which a socket without calls is closed; 0 means never
	dialer        link.Dialer                                     // replaces the target's unless nil
	server        *Server                                         // serves the peer's calls; may be nil
	fallback      bool                                            // to grpc-go, if an ordinary gRPC server answers
	persistent    bool                                            // the connection is kept without calls
	accept        func(link.Session) link.Acceptor                // of the peer's calls; nil for none
	grpc          []grpc.DialOption
	err           error // of an option; ignored for targets that go to grpc-go
}

func newDialOptions(opts []DialOption) *dialOptions {
	o := &dialOptions{timeout: 20 * time.Second, idle: 30 * time.Minute, memory: 128 << 20, attempts: call.DefaultMaxCallAttempts}
	o.socket.Unix = unixAuthInfo
	for _, opt := range opts {
		if opt != nil {
			opt.applyDial(o)
		}
	}
	if o.serviceConfig != nil {
		o.Service, o.err = call.ParseServiceConfig(*o.serviceConfig, o.attempts)
		if o.err == nil && o.noRetry {
			o.Service.DisableRetry()
		}
	}
	if o.unaryFirst != nil {
		o.Unary = append([]grpc.UnaryClientInterceptor{o.unaryFirst}, o.Unary...)
	}
	if o.streamFirst != nil {
		o.Stream = append([]grpc.StreamClientInterceptor{o.streamFirst}, o.Stream...)
	}
	return o
}

func (o *dialOptions) inproc() inproc.Options {
	return inproc.Options{Window: o.socket.Window, Accept: o.accept}
}

func init() {
	hook.Connect = connect
	hook.Dialer = func(d link.Dialer) any {
		return dialOption{set: func(o *dialOptions) { o.dialer = d }}
	}
}

// A dialOption is an option for nearcall and, if grpc is set, for grpc-go.
type dialOption struct {
	set  func(*dialOptions)
	grpc grpc.DialOption
}

func (d dialOption) applyDial(o *dialOptions) {
	if d.set != nil {
		d.set(o)
	}
	if d.grpc != nil {
		o.grpc = append(o.grpc, d.grpc)
	}
}

// WithUnaryInterceptor sets the outermost interceptor of unary calls. If it is given
// more than once the last one counts.
//
// Interceptors get a *grpc.ClientConn, as their type demands: the one that
// [ClientConn.GRPC] returns.
func WithUnaryInterceptor(i grpc.UnaryClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.unaryFirst = i }, grpc.WithUnaryInterceptor(i)}
}

// WithChainUnaryInterceptor adds interceptors of unary calls, the first one outermost.
func WithChainUnaryInterceptor(is ...grpc.UnaryClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.Unary = append(o.Unary, is...) }, grpc.WithChainUnaryInterceptor(is...)}
}

// WithStreamInterceptor sets the outermost interceptor of streams. If it is given more
// than once the last one counts.
func WithStreamInterceptor(i grpc.StreamClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.streamFirst = i }, grpc.WithStreamInterceptor(i)}
}

// WithChainStreamInterceptor adds interceptors of streams, the first one outermost.
func WithChainStreamInterceptor(is ...grpc.StreamClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.Stream = append(o.Stream, is...) }, grpc.WithChainStreamInterceptor(is...)}
}

// WithStatsHandler adds a stats handler. It can be given more than once. A nil handler
// is ignored.
func WithStatsHandler(h stats.Handler) DialOption {
	return dialOption{func(o *dialOptions) {
		if h != nil {
			o.Stats = append(o.Stats, h)
		}
	}, grpc.WithStatsHandler(h)}
}

// WithTransportCredentials sets the credentials of connections to other processes.
//
// A tcp: target requires credentials unless its host is a literal loopback address or
// localhost; those of [google.golang.org/grpc/credentials/insecure] mean none. A unix:
// target requires none: it counts as private, as with grpc-go's local credentials, even
// with insecure ones. In process a connection is always private. A wss: target takes only
// those of [NewTLS]. Per-RPC credentials that require transport security are sent over
// private connections.
func WithTransportCredentials(creds credentials.TransportCredentials) DialOption {
	return dialOption{func(o *dialOptions) { o.transport = creds }, grpc.WithTransportCredentials(creds)}
}

// WithCredentialsBundle combines [WithTransportCredentials] and
// [WithPerRPCCredentials]. It cannot be used together with WithTransportCredentials.
func WithCredentialsBundle(b credentials.Bundle) DialOption {
	return dialOption{func(o *dialOptions) {
		o.bundle = b
		if creds := b.PerRPCCredentials(); creds != nil {
			o.Creds = append(o.Creds, creds)
		}
	}, grpc.WithCredentialsBundle(b)}
}

// WithPerRPCCredentials adds credentials to every call.
func WithPerRPCCredentials(creds credentials.PerRPCCredentials) DialOption {
	return dialOption{func(o *dialOptions) { o.Creds = append(o.Creds, creds) }, grpc.WithPerRPCCredentials(creds)}
}

// WithDefaultCallOptions sets call options that are applied before those of each call.
func WithDefaultCallOptions(opts ...grpc.CallOption) DialOption {
	return dialOption{func(o *dialOptions) { o.CallOptions = append(o.CallOptions, opts...) }, grpc.WithDefaultCallOptions(opts...)}
}

// WithDefaultServiceConfig sets gRPC's service config, in JSON. On nearcall's own
// targets methodConfig applies, with its timeout, waitForReady, message sizes and
// retryPolicy, and retryThrottling. An invalid config is an error of [NewClient], and
// of the calls of [Server.Client].
func WithDefaultServiceConfig(json string) DialOption {
	return dialOption{func(o *dialOptions) { o.serviceConfig = &json }, grpc.WithDefaultServiceConfig(json)}
}

// WithDisableRetry disables retries by a service config's retryPolicy. Calls that no
// handler has seen are still retried.
func WithDisableRetry() DialOption {
	return dialOption{func(o *dialOptions) { o.noRetry = true }, grpc.WithDisableRetry()}
}

// WithMaxCallAttempts limits the attempts of a call, including the first, if its
// retryPolicy allows more. The default is 5, which values below 2 select, too.
func WithMaxCallAttempts(n int) DialOption {
	return dialOption{func(o *dialOptions) {
		if o.attempts = n; n < 2 {
			o.attempts = call.DefaultMaxCallAttempts
		}
	}, grpc.WithMaxCallAttempts(n)}
}

// WithIdleTimeout sets how long a connection without calls stays open. After that time,
// or up to a quarter later, it is closed and becomes idle: it does not reconnect before
// the next call or [ClientConn.Connect]. The default is 30 minutes; 0 disables the
// timeout. In process it has no effect: an idle connection holds nothing worth closing.
func WithIdleTimeout(d time.Duration) DialOption {
	return dialOption{func(o *dialOptions) { o.idle = d }, grpc.WithIdleTimeout(d)}
}

// WithMaxSharedMemory limits the shared memory that the client's connection uses,
// in bytes. The default is 128 MiB: connections of unix: targets become shared memory on Linux, if
// the server agrees and has the same user; then the network of the call's peer address is "shm".
// With 0 they stay sockets; 0 has no effect on shm: targets, which are always shared memory.
//
// A connection uses 260 KiB and, while it sends messages of 32 KiB or more, up to 64 MiB more,
// which it releases 5 seconds after the last of them. After a reconnect old connections exist beside the new one until their
// calls have ended: their 260 KiB may exceed the limit. The server's use is limited by
// [MaxSharedMemory].
//
// At the limit large messages are sent in pieces. If the limit is below what a
// connection needs at least, unix: targets stay sockets and calls of shm: targets fail.
// Large messages that have arrived on a connection that ends count by themselves until
// they are received. Those beyond the limit are lost: receiving one fails with
// ResourceExhausted.
func WithMaxSharedMemory(bytes int64) DialOption {
	return dialOption{set: func(o *dialOptions) {
		if o.socket.NoUpgrade = bytes <= 0; bytes > 0 {
			o.memory = bytes
		}
	}}
}

// WithDisableSpinning makes callers that wait for a reply from another process, or for room to
// write a large message, block in the system at once. By default they spin for up to 50
// microseconds first, if few callers are waiting, spinning has paid off before, and there
// is more than one processor: see [DisableSpinning].
func WithDisableSpinning() DialOption {
	return dialOption{set: func(o *dialOptions) { o.socket.NoSpin = true }}
}

// WithConnectParams sets the backoff between connection attempts, and the minimum time
// for each attempt. For tcp: targets the backoff is gRPC's by default: 1 s, growing by
// a factor of 1.6 up to 120 s. For nearcall's other targets, which have no network in
// between, it is 20 ms, growing by 1.6 up to 1 s. The minimum time is 20 s by default.
func WithConnectParams(p grpc.ConnectParams) DialOption {
	return dialOption{func(o *dialOptions) {
		o.backoff = &p.Backoff
		if p.MinConnectTimeout > 0 {
			o.timeout = p.MinConnectTimeout
		}
	}, grpc.WithConnectParams(p)}
}

// WithInitialWindowSize sets the flow-control window of a stream: how many bytes a
// handler can send before the caller has received them. A handler that is ahead by half as
// much more waits. The minimum is 64 KiB. The
// default is 64 KiB in process, and 256 KiB over sockets and shared memory, where a
// window that was not set grows up to 4 MiB if the stream's messages need it.
func WithInitialWindowSize(bytes int32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.Window = int(bytes) }, grpc.WithInitialWindowSize(bytes)}
}

// WithMaxHeaderListSize limits the header and the trailer of a response, each in bytes.
// The default is 16 MiB, the minimum 16 KiB. Each entry counts 32 bytes in addition to
// its key and its value. A call whose header or trailer is larger fails with Internal.
// All of this is as in grpc-go, except the minimum. In process there is no limit.
func WithMaxHeaderListSize(bytes uint32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.MaxHeaderBytes = int(min(bytes, math.MaxInt32)) }, grpc.WithMaxHeaderListSize(bytes)}
}

// WithUserAgent prepends ua to the user-agent that handlers see.
func WithUserAgent(ua string) DialOption {
	return dialOption{func(o *dialOptions) { o.UserAgent = ua }, grpc.WithUserAgent(ua)}
}

// WithAuthority sets the :authority that handlers see. The server's certificate must be
// valid for it. The default is the server name of the transport credentials if they
// have one; otherwise it is NAME of an inproc: target, HOST:PORT of a tcp: target, and
// localhost for unix: and shm: targets.
func WithAuthority(authority string) DialOption {
	return dialOption{func(o *dialOptions) { o.Authority = authority }, grpc.WithAuthority(authority)}
}

// WithImmutableMessages promises that the client program does not modify a message after
// it was sent or received on this connection. See [ImmutableMessages].
func WithImmutableMessages() DialOption {
	return dialOption{func(o *dialOptions) { o.Shared = true }, nil}
}

// WithKeepaliveParams sets the client's keepalive. As in gRPC no pings are sent unless
// p.Time is set, Time is at least 10 s, Timeout is 20 s by default, and a connection
// without calls is pinged only if p.PermitWithoutStream is set. The client increases
// Time if the server's [KeepaliveEnforcementPolicy] requires it. In process the option
// has no effect.
func WithKeepaliveParams(p keepalive.ClientParameters) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.Keepalive = p }, grpc.WithKeepaliveParams(p)}
}

// WithInitialConnWindowSize sets the flow-control window of a connection: how many
// bytes all handlers together can send before the client has read them. The default is
// 2 MiB; the minimum is the window of a stream. In process only streams have windows.
func WithInitialConnWindowSize(bytes int32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.ConnWindow = max(int(bytes), 0) }, grpc.WithInitialConnWindowSize(bytes)}
}

// WithContextDialer sets the function that opens connections to other processes. As in
// grpc-go dial gets HOST:PORT for a tcp: target, unix:///PATH for a unix: target with
// an absolute path, and unix:PATH for one with a relative path. Which credentials are
// required depends on the target, not on the connection that dial returns.
func WithContextDialer(dial func(context.Context, string) (net.Conn, error)) DialOption {
	return dialOption{func(o *dialOptions) { o.dial = dial }, grpc.WithContextDialer(dial)}
}

// WithGRPCFallback makes calls go through grpc-go while an ordinary gRPC server listens at
// a tcp: or unix: target, so that clients can move over before their servers. Whenever
// the client connects, it tries nearcall's protocol first: when the server has moved over,
// the client needs no change. By default calls to an ordinary gRPC server fail, and say
// so.
//
// Such calls are made with the options of this connection. Options of
// [WithGRPCDialOptions] have no effect on them. Two connections are made instead of one. An
// ordinary gRPC server makes no calls to a client with [WithServer].
func WithGRPCFallback() DialOption {
	return dialOption{set: func(o *dialOptions) { o.fallback = true }}
}

// WithGRPCDialOptions passes options to grpc-go. They affect only targets that go to
// grpc-go.
func WithGRPCDialOptions(opts ...grpc.DialOption) DialOption {
	return dialOption{func(o *dialOptions) { o.grpc = append(o.grpc, opts...) }, nil}
}
