package nearcall

import (
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// A ServerOption configures [NewServer]. Options have the names that they have
// in grpc-go, and mean the same. For those of grpc-go that are not here, see
// https://github.com/nearcall/nearcall/blob/main/docs/migrate.md#what-is-left-to-you.
type ServerOption interface{ applyServer(*serverOptions) }

type serverOptions struct {
	call.ServerConfig
	unaryFirst  grpc.UnaryServerInterceptor
	streamFirst grpc.StreamServerInterceptor
	socket      sock.Options
	memory      int64 // that connections may share together, in bytes
}

// defaultCalls is how many calls a client in another process may have open on a
// connection where nothing else is said. Each costs the server a goroutine and some
// 10 KiB, and the client a few bytes.
const defaultCalls = 1000

func defaultServerOptions() serverOptions {
	return serverOptions{
		ServerConfig: call.ServerConfig{MaxRecv: 4 << 20, MaxSend: math.MaxInt32},
		socket:       sock.Options{Unix: unixAuthInfo, MaxStreams: defaultCalls},
		memory:       1 << 30,
	}
}

// sockets are the options of connections that come from other processes.
func (o *serverOptions) sockets() sock.Options {
	s := o.socket
	s.Window = o.Window
	s.Upgrade = toSharedMemory(o.memory, true)
	return s
}

// config puts the single interceptors outermost, as grpc-go does.
func (o *serverOptions) config() call.ServerConfig {
	c := o.ServerConfig
	c.MaxRemote = o.socket.MaxStreams
	if o.unaryFirst != nil {
		c.Unary = append([]grpc.UnaryServerInterceptor{o.unaryFirst}, c.Unary...)
	}
	if o.streamFirst != nil {
		c.Stream = append([]grpc.StreamServerInterceptor{o.streamFirst}, c.Stream...)
	}
	return c
}

func init() {
	hook.Forward = func(handler func(grpc.ServerStream, bool) error, c encoding.CodecV2, services func() map[string]grpc.ServiceInfo) any {
		return serverOption(func(o *serverOptions) {
			o.Forward = &call.Forward{Handler: handler, Codec: codec.WrapV2(c), Services: services}
		})
	}
}

type serverOption func(*serverOptions)

func (f serverOption) applyServer(o *serverOptions) { f(o) }

// UnaryInterceptor sets the outermost interceptor of unary calls. It may be
// given once; see [ChainUnaryInterceptor] for more.
func UnaryInterceptor(i grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(o *serverOptions) {
		if o.unaryFirst != nil {
			panic("nearcall: the unary server interceptor was already set; use ChainUnaryInterceptor for several")
		}
		o.unaryFirst = i
	})
}

// ChainUnaryInterceptor adds interceptors of unary calls, the first outermost.
func ChainUnaryInterceptor(is ...grpc.UnaryServerInterceptor) ServerOption {
	return serverOption(func(o *serverOptions) { o.Unary = append(o.Unary, is...) })
}

// StreamInterceptor sets the outermost interceptor of streams. It may be given
// once; see [ChainStreamInterceptor] for more.
func StreamInterceptor(i grpc.StreamServerInterceptor) ServerOption {
	return serverOption(func(o *serverOptions) {
		if o.streamFirst != nil {
			panic("nearcall: the stream server interceptor was already set; use ChainStreamInterceptor for several")
		}
		o.streamFirst = i
	})
}

// ChainStreamInterceptor adds interceptors of streams, the first outermost.
func ChainStreamInterceptor(is ...grpc.StreamServerInterceptor) ServerOption {
	return serverOption(func(o *serverOptions) { o.Stream = append(o.Stream, is...) })
}

// StatsHandler adds a handler of stats. It may be given more than once; the
// handlers are called in order. A nil handler is ignored.
func StatsHandler(h stats.Handler) ServerOption {
	return serverOption(func(o *serverOptions) {
		if h != nil {
			o.Stats = append(o.Stats, h)
		}
	})
}

// MaxRecvMsgSize limits the encoded size of a message that the server takes,
// in bytes; 4 MiB by default. A larger one fails with ResourceExhausted. The
// limit holds in process too, where nothing is encoded.
func MaxRecvMsgSize(bytes int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxRecv = bytes })
}

// MaxSendMsgSize limits the encoded size of a message that the server sends,
// in bytes; math.MaxInt32 by default.
func MaxSendMsgSize(bytes int) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxSend = bytes })
}

// MaxConcurrentStreams limits the calls of one connection that run at a time. A
// caller over the limit waits for one of them to end. Zero is no limit. The default
// is 1,000 for connections from other processes, and no limit within the process;
// grpc-go has none for either.
//
// Within the process a call runs until its handler has returned. Over sockets it
// does until it is over. Handlers of calls that were given up count as well: where
// n of a connection's handlers run, the server reads no further call of it until
// one has returned, as grpc-go's does.
func MaxConcurrentStreams(n uint32) ServerOption {
	return serverOption(func(o *serverOptions) { o.MaxStreams, o.socket.MaxStreams = n, n })
}

// InitialWindowSize sets how many bytes a caller may send on a stream before
// the handler has received them. The default is 64 KiB within the process and
// 256 KiB over sockets, where a window that was not set grows to 4 MiB with its
// stream's messages. The least is 64 KiB.
func InitialWindowSize(bytes int32) ServerOption {
	return serverOption(func(o *serverOptions) { o.Window = int(bytes) })
}

// UnknownServiceHandler sets the handler of calls to methods that were not
// registered. It is given a stream, whatever the caller takes the method for.
func UnknownServiceHandler(h grpc.StreamHandler) ServerOption {
	return serverOption(func(o *serverOptions) { o.Unknown = h })
}

// ForceServerCodecV2 has all messages encoded and decoded by c, whatever the
// callers' content-subtypes say.
func ForceServerCodecV2(c encoding.CodecV2) ServerOption {
	return serverOption(func(o *serverOptions) { o.Codec = codec.WrapV2(c) })
}

// WaitForHandlers has [Server.Stop] wait until all handlers have returned.
func WaitForHandlers(wait bool) ServerOption {
	return serverOption(func(o *serverOptions) { o.ServerConfig.WaitForHandlers = wait })
}

// InlineHandlers runs the handlers of unary calls on their callers' goroutines
// also where the callers' contexts can be cancelled. It spares the switch to a
// worker, most of the cost of a small call. In return a cancelled caller waits
// until the handler returns, so use it where handlers are quick or watch their
// contexts.
func InlineHandlers() ServerOption {
	return serverOption(func(o *serverOptions) { o.Placement = call.Inline })
}

// WorkerHandlers runs all handlers on goroutines of the server. Use it where
// handlers depend on a goroutine of their own: for runtime.Goexit, for
// goroutine labels, or to have their panics end the process rather than reach
// their callers. Use it, too, where a program waits for its callers after Close or
// Stop: see [ClientConn.Close].
func WorkerHandlers() ServerOption {
	return serverOption(func(o *serverOptions) { o.Placement = call.OnWorkers })
}

// SharedMessages promises that the server's handlers and interceptors write to
// no message after it was received or sent. Messages are then handed to and
// from clients of the process that promise the same with [WithSharedMessages],
// instead of being copied: sender and receiver see the same nested messages,
// bytes and maps. Size limits hold; what marshalling would refuse is not looked
// for. With any other client the server copies as ever.
func SharedMessages() ServerOption {
	return serverOption(func(o *serverOptions) { o.Shared = true })
}

// Creds sets the credentials that connections from other processes are
// secured with, whatever listener they come from. Without any, and with those
// of [google.golang.org/grpc/credentials/insecure], unix sockets count as
// private, and their peers are told by [UnixAuthInfo]. Connections within the
// process are private already.
func Creds(creds credentials.TransportCredentials) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.Creds = secured(creds) })
}

// KeepaliveParams sets the server's keepalive, and how old and how idle a
// connection may become. As in gRPC the default Time is 2 h, the least 1 s, the
// default Timeout 20 s, and connections may be of any age. It concerns those from
// other processes; within the process there is nothing to keep alive.
func KeepaliveParams(p keepalive.ServerParameters) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.ServerKeepalive = p })
}

// KeepaliveEnforcementPolicy limits how often a client may ping. As in gRPC the
// default is once in 5 min, and not without a call. Clients are told and keep to it;
// one that pings more often all the same is disconnected. It concerns connections from other processes.
func KeepaliveEnforcementPolicy(p keepalive.EnforcementPolicy) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.Enforcement = p })
}

// InitialConnWindowSize sets how many bytes all callers of a connection from
// another process may send together before the server has taken them in. The
// default is 2 MiB, and the least is the window of a stream. Within the process
// streams alone are limited.
func InitialConnWindowSize(bytes int32) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.ConnWindow = max(int(bytes), 0) })
}

// MaxHeaderListSize limits the header of a call from another process, in bytes:
// 16 MiB by default, and 16 KiB at least. As in grpc-go each entry counts 32
// bytes beside those of its key and its value. A client of nearcall knows the limit, and fails a call with a larger one with
// Internal, as in grpc-go. Within the process there is no limit.
func MaxHeaderListSize(bytes uint32) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.MaxHeaderBytes = int(min(bytes, math.MaxInt32)) })
}

// NoUpgrade leaves connections to unix listeners the sockets that they are: by
// default they become shared memory where a client of the same user offers it, on
// Linux. Listeners of shm targets are not concerned.
func NoUpgrade() ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.NoUpgrade = true })
}

// MaxSharedMemory limits what the server's connections of shared memory take of it
// together, in bytes; 1 GiB by default. Each takes 520 KiB, for what it sends and
// for what it receives, and, while it sends messages of 32 KiB and more, up to 64 MiB
// for these, which it gives back 5 seconds after the last. Large messages that the
// clients send are in memory of theirs, to limit with [WithMaxSharedMemory].
//
// Clients that do not receive what they are sent keep it from nobody else: what a
// connection takes for large messages comes to a quarter of what it leaves to
// others, at most, and an eighth of the limit is left to connections that are new.
//
// Where the limit is reached large messages are sent in pieces, unix sockets stay
// sockets, and clients of shm targets are refused. [ReadSharedMemoryStats] has the
// figures.
func MaxSharedMemory(bytes int64) ServerOption {
	return serverOption(func(o *serverOptions) { o.memory = bytes })
}

// NoSpinning has the server's connections wait for what comes next in the system,
// at once. By default one that has few calls open tries again for up to 50
// microseconds before that, where trying has paid before and there is more than
// one processor: a call takes a fraction of the time then, as nobody has to be
// woken for it, and mostly less of the processors' too.
func NoSpinning() ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.NoSpin = true })
}

// ConnectionTimeout limits the time that a connection from another process may
// take, handshake of the credentials included, until it has said what it is; it
// is closed then. The default is 120 s. As in grpc-go, no client is that fast
// where d is not positive.
func ConnectionTimeout(d time.Duration) ServerOption {
	return serverOption(func(o *serverOptions) { o.socket.Handshake = max(d, 1) })
}
