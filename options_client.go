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

// A DialOption configures [NewClient] and [Server.Client]. Options have the
// names that they have in grpc-go, and mean the same; for targets that go to
// grpc-go they are passed on. For those of grpc-go that are not here, see
// [WithGRPCDialOptions].
type DialOption interface{ applyDial(*dialOptions) }

type dialOptions struct {
	call.ClientConfig
	unaryFirst    grpc.UnaryClientInterceptor
	streamFirst   grpc.StreamClientInterceptor
	transport     credentials.TransportCredentials
	bundle        credentials.Bundle
	socket        sock.Options
	serviceConfig *string                                         // as it was given, in JSON
	attempts      int                                             // that a call is made with at most
	noRetry       bool                                            // by a retryPolicy
	memory        int64                                           // that connections may share together, in bytes
	dial          func(context.Context, string) (net.Conn, error) // in place of net.Dialer
	backoff       *backoff.Config                                 // nil for what suits the target
	timeout       time.Duration                                   // the least that an attempt to connect is given
	idle          time.Duration                                   // after which a socket without calls is closed; 0 for never
	dialer        link.Dialer                                     // in place of the target's
	grpc          []grpc.DialOption
	err           error // of an option, where the target is nearcall's own
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

func (o *dialOptions) inproc() inproc.Options { return inproc.Options{Window: o.socket.Window} }

func init() {
	hook.Dialer = func(d link.Dialer) any {
		return dialOption{set: func(o *dialOptions) { o.dialer = d }}
	}
}

// A dialOption is an option in both worlds: nearcall's and grpc-go's.
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

// WithUnaryInterceptor sets the outermost interceptor of unary calls.
//
// Interceptors are shown a *grpc.ClientConn, as their type demands: what
// [ClientConn.GRPC] returns.
func WithUnaryInterceptor(i grpc.UnaryClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.unaryFirst = i }, grpc.WithUnaryInterceptor(i)}
}

// WithChainUnaryInterceptor adds interceptors of unary calls, the first
// outermost.
func WithChainUnaryInterceptor(is ...grpc.UnaryClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.Unary = append(o.Unary, is...) }, grpc.WithChainUnaryInterceptor(is...)}
}

// WithStreamInterceptor sets the outermost interceptor of streams.
func WithStreamInterceptor(i grpc.StreamClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.streamFirst = i }, grpc.WithStreamInterceptor(i)}
}

// WithChainStreamInterceptor adds interceptors of streams, the first outermost.
func WithChainStreamInterceptor(is ...grpc.StreamClientInterceptor) DialOption {
	return dialOption{func(o *dialOptions) { o.Stream = append(o.Stream, is...) }, grpc.WithChainStreamInterceptor(is...)}
}

// WithStatsHandler adds a handler of stats. It may be given more than once. A
// nil handler is ignored.
func WithStatsHandler(h stats.Handler) DialOption {
	return dialOption{func(o *dialOptions) {
		if h != nil {
			o.Stats = append(o.Stats, h)
		}
	}, grpc.WithStatsHandler(h)}
}

// WithTransportCredentials sets the credentials of a connection that leaves
// the process. A tcp: target has to be given some, which may be those of
// [google.golang.org/grpc/credentials/insecure] for none, unless its host is a
// literal loopback address or localhost. A unix: target needs none: it counts as
// private, as with grpc-go's local credentials, also where it is given
// insecure ones. Within the process a connection is private already; either
// way credentials of calls that demand privacy are sent.
func WithTransportCredentials(creds credentials.TransportCredentials) DialOption {
	return dialOption{func(o *dialOptions) { o.transport = creds }, grpc.WithTransportCredentials(creds)}
}

// WithCredentialsBundle is [WithTransportCredentials] and
// [WithPerRPCCredentials] in one.
func WithCredentialsBundle(b credentials.Bundle) DialOption {
	return dialOption{func(o *dialOptions) {
		o.bundle = b
		if creds := b.PerRPCCredentials(); creds != nil {
			o.Creds = append(o.Creds, creds)
		}
	}, grpc.WithCredentialsBundle(b)}
}

// WithPerRPCCredentials adds credentials to each call.
func WithPerRPCCredentials(creds credentials.PerRPCCredentials) DialOption {
	return dialOption{func(o *dialOptions) { o.Creds = append(o.Creds, creds) }, grpc.WithPerRPCCredentials(creds)}
}

// WithDefaultCallOptions sets call options that precede those of each call.
func WithDefaultCallOptions(opts ...grpc.CallOption) DialOption {
	return dialOption{func(o *dialOptions) { o.CallOptions = append(o.CallOptions, opts...) }, grpc.WithDefaultCallOptions(opts...)}
}

// WithDefaultServiceConfig sets gRPC's service config, in JSON. Of its
// methodConfig the timeouts, waitForReady, message sizes and retryPolicy count on
// nearcall's own targets, and its retryThrottling does. One that is not valid is
// an error of [NewClient], and of the first call of [Server.Client].
func WithDefaultServiceConfig(json string) DialOption {
	return dialOption{func(o *dialOptions) { o.serviceConfig = &json }, grpc.WithDefaultServiceConfig(json)}
}

// WithDisableRetry turns off retries by a service config's retryPolicy. Calls
// that no handler has seen are made again all the same.
func WithDisableRetry() DialOption {
	return dialOption{func(o *dialOptions) { o.noRetry = true }, grpc.WithDisableRetry()}
}

// WithMaxCallAttempts limits the attempts that a call is made with, the first
// included, where a retryPolicy wants more. The default is 5, and so is a value
// below 2.
func WithMaxCallAttempts(n int) DialOption {
	return dialOption{func(o *dialOptions) {
		if o.attempts = n; n < 2 {
			o.attempts = call.DefaultMaxCallAttempts
		}
	}, grpc.WithMaxCallAttempts(n)}
}

// WithIdleTimeout sets the time after which a connection that makes no calls is
// closed and becomes idle: it no longer tries to connect before the next call or
// [ClientConn.Connect]. It may take up to a quarter longer. The default is 30
// minutes; 0 turns it off. Within the process an idle connection holds
// nothing worth closing, and is not.
func WithIdleTimeout(d time.Duration) DialOption {
	return dialOption{func(o *dialOptions) { o.idle = d }, grpc.WithIdleTimeout(d)}
}

// WithoutUpgrade leaves connections of unix targets the sockets that they are. By
// default they become shared memory where the server agrees and is of the same
// user, on Linux: see [UnixAuthInfo] for how a call's peer says so. For shm targets
// it does nothing, for they are nothing else.
func WithoutUpgrade() DialOption {
	return dialOption{set: func(o *dialOptions) { o.socket.NoUpgrade = true }}
}

// WithMaxSharedMemory limits what the client's connection takes of shared memory, in
// bytes; 128 MiB by default. It takes 260 KiB and, while it sends messages of 32 KiB
// and more, up to 64 MiB for these, which it gives back 5 seconds after the last. A
// connection that takes another's place may be there beside it for a while. What
// the server takes is its own to limit, with [MaxSharedMemory].
//
// Where the limit is reached large messages are sent in pieces; where it is below
// what a connection takes at least, unix targets stay sockets, and calls of shm
// targets fail.
func WithMaxSharedMemory(bytes int64) DialOption {
	return dialOption{set: func(o *dialOptions) { o.memory = bytes }}
}

// WithoutSpinning has callers wait for replies from other processes in the system,
// at once. By default they try again for up to 50 microseconds before that, where
// few wait, trying has paid before and there is more than one processor: see
// [NoSpinning].
func WithoutSpinning() DialOption {
	return dialOption{set: func(o *dialOptions) { o.socket.NoSpin = true }}
}

// WithConnectParams sets the backoff between attempts to connect, and the
// least time that each is given. The defaults over tcp: are gRPC's: 1 s growing by 1.6
// to 120 s, and 20 s. Where no network is in between, which are all other targets of
// nearcall's own, the backoff is 20 ms growing by 1.6 to 1 s.
func WithConnectParams(p grpc.ConnectParams) DialOption {
	return dialOption{func(o *dialOptions) {
		o.backoff = &p.Backoff
		if p.MinConnectTimeout > 0 {
			o.timeout = p.MinConnectTimeout
		}
	}, grpc.WithConnectParams(p)}
}

// WithInitialWindowSize sets how many bytes a handler may send on a stream
// before its caller has received them. The default is 64 KiB within the process
// and 256 KiB over sockets, where a window that was not set grows to 4 MiB with
// its stream's messages. The least is 64 KiB.
func WithInitialWindowSize(bytes int32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.Window = int(bytes) }, grpc.WithInitialWindowSize(bytes)}
}

// WithMaxHeaderListSize limits the header and the trailer of a response, each in
// bytes: 16 MiB by default, and 16 KiB at least. As in grpc-go each entry counts
// 32 bytes beside those of its key and its value. A larger one fails its call with Internal, as in grpc-go. Within the process there is no limit.
func WithMaxHeaderListSize(bytes uint32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.MaxHeaderBytes = int(min(bytes, math.MaxInt32)) }, grpc.WithMaxHeaderListSize(bytes)}
}

// WithUserAgent puts ua before the user-agent that handlers see.
func WithUserAgent(ua string) DialOption {
	return dialOption{func(o *dialOptions) { o.UserAgent = ua }, grpc.WithUserAgent(ua)}
}

// WithAuthority sets the :authority that handlers see, which is the name that a
// server's certificate is held to as well. By default it is the server name of
// the transport credentials if they have one, and else the name of an inproc:
// target, HOST:PORT of a tcp: target, and localhost for a unix: target.
func WithAuthority(authority string) DialOption {
	return dialOption{func(o *dialOptions) { o.Authority = authority }, grpc.WithAuthority(authority)}
}

// WithSharedMessages promises that the program writes to no message after it
// was sent or received on this connection. See [SharedMessages].
func WithSharedMessages() DialOption {
	return dialOption{func(o *dialOptions) { o.Shared = true }, nil}
}

// WithKeepaliveParams sets the client's keepalive. As in gRPC no ping is sent
// unless p has a Time, which is 10 s at least; the default Timeout is 20 s, and
// without calls there are pings only where p permits them. There is more time between
// pings where the server's [KeepaliveEnforcementPolicy] says so. Within the process
// there is nothing to keep alive.
func WithKeepaliveParams(p keepalive.ClientParameters) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.Keepalive = p }, grpc.WithKeepaliveParams(p)}
}

// WithInitialConnWindowSize sets how many bytes all handlers together may send
// on a connection before it has taken them in. The default is 2 MiB, and the
// least is the window of a stream. Within the process streams alone are limited.
func WithInitialConnWindowSize(bytes int32) DialOption {
	return dialOption{func(o *dialOptions) { o.socket.ConnWindow = max(int(bytes), 0) }, grpc.WithInitialConnWindowSize(bytes)}
}

// WithContextDialer sets how connections that leave the process are opened. dial
// gets HOST:PORT of a tcp: target, and unix:///PATH or unix:PATH, for absolute
// and relative paths, of a unix: target, as in grpc-go. Which credentials are
// needed depends on the target, and not on what dial opens.
func WithContextDialer(dial func(context.Context, string) (net.Conn, error)) DialOption {
	return dialOption{func(o *dialOptions) { o.dial = dial }, grpc.WithContextDialer(dial)}
}

// WithGRPCDialOptions passes options to grpc-go, for targets that go there.
// Other targets do not see them.
func WithGRPCDialOptions(opts ...grpc.DialOption) DialOption {
	return dialOption{func(o *dialOptions) { o.grpc = append(o.grpc, opts...) }, nil}
}
