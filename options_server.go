package nearcall

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A ServerOption configures [NewServer]. Options have the names and the meaning that
// they have in grpc-go. For options of grpc-go that are missing here see
// https://github.com/nearcall/nearcall/blob/main/docs/migrate.md#what-is-left-to-you.
type ServerOption = options.ServerOption

// UnaryInterceptor sets the outermost interceptor of unary calls. It panics if it is
// given twice; use [ChainUnaryInterceptor] for several interceptors.
func UnaryInterceptor(i grpc.UnaryServerInterceptor) ServerOption {
	return options.SetServer(func(o *options.Server) {
		if o.UnaryFirst != nil {
			panic("nearcall: the unary server interceptor was already set; use ChainUnaryInterceptor for several")
		}
		o.UnaryFirst = i
	})
}

// ChainUnaryInterceptor adds interceptors of unary calls, the first one outermost.
func ChainUnaryInterceptor(is ...grpc.UnaryServerInterceptor) ServerOption {
	return options.SetServer(func(o *options.Server) { o.ServerUnaryChain = append(o.ServerUnaryChain, is...) })
}

// StreamInterceptor sets the outermost interceptor of streams. It panics if it is given
// twice; use [ChainStreamInterceptor] for several interceptors.
func StreamInterceptor(i grpc.StreamServerInterceptor) ServerOption {
	return options.SetServer(func(o *options.Server) {
		if o.StreamFirst != nil {
			panic("nearcall: the stream server interceptor was already set; use ChainStreamInterceptor for several")
		}
		o.StreamFirst = i
	})
}

// ChainStreamInterceptor adds interceptors of streams, the first one outermost.
func ChainStreamInterceptor(is ...grpc.StreamServerInterceptor) ServerOption {
	return options.SetServer(func(o *options.Server) { o.ServerStreamChain = append(o.ServerStreamChain, is...) })
}

// InTapHandle sets a function that is asked before a call is accepted, over every path. It may
// refuse the call, or return the context for stats handlers, interceptors and the handler, as
// [tap.ServerInHandle] says. It must be quick: over most paths it runs on the goroutine that reads
// the connection. In process it runs on the caller's, and over HTTP on the request's, so it may run
// concurrently. Stats handlers do not learn of calls that it refuses, except for ordinary gRPC
// clients over [Server.ServeHTTP]. InTapHandle panics if it is given twice.
func InTapHandle(h tap.ServerInHandle) ServerOption {
	return options.SetServer(func(o *options.Server) {
		if o.TapHandle != nil {
			panic("nearcall: the tap handle was already set; call both functions in one")
		}
		o.TapHandle = h
	})
}

// StatsHandler adds a stats handler, such as otelgrpc's. It can be given more than
// once; handlers are called in order. A nil handler is ignored.
func StatsHandler(h stats.Handler) ServerOption {
	return options.SetServer(func(o *options.Server) {
		if h != nil {
			o.ServerStats = append(o.ServerStats, h)
		}
	})
}

// MaxRecvMsgSize limits the encoded size of messages that the server receives, in bytes, both as
// they arrive and after decompression. The default is 4 MiB. Larger messages fail with
// ResourceExhausted. The limit also applies in process, although nothing is encoded there.
func MaxRecvMsgSize(bytes int) ServerOption {
	return options.SetServer(func(o *options.Server) { o.MaxRecv = bytes })
}

// MaxSendMsgSize limits the encoded size of messages that the server sends, in bytes. As in
// grpc-go the compressed size counts if a message is compressed. The default is math.MaxInt32.
// Larger messages fail with ResourceExhausted, in process as well: there nearcall compresses a
// message with the call's compressor only if that decides whether it is too large.
func MaxSendMsgSize(bytes int) ServerOption {
	return options.SetServer(func(o *options.Server) { o.MaxSend = bytes })
}

// MaxConcurrentStreams limits the concurrent calls of each connection, unary calls included. A
// caller over the limit waits until another call ends or its own context is done. Zero means no
// limit. The default is 1,000 for connections from other processes, ordinary gRPC clients
// included, and no limit in process; grpc-go has no limit by default.
//
// In process a call counts until its handler has returned. Between processes it counts until it
// has ended for the client. A cancelled call can end before its handler returns, so the server
// enforces a second limit: while n handlers of a connection run, it reads no further calls of
// that connection, as in grpc-go.
func MaxConcurrentStreams(n uint32) ServerOption {
	return options.SetServer(func(o *options.Server) { o.SetMaxStreams(n) })
}

// InitialWindowSize sets the flow-control window of a stream. It limits how many bytes a caller
// can send before the handler has received them: at one and a half windows the caller waits. The
// minimum is 64 KiB. The default is 64 KiB in process, and 256 KiB over sockets and shared memory,
// where the default window grows up to 4 MiB if the stream's messages need it. For ordinary gRPC
// clients the default is grpc-go's.
func InitialWindowSize(bytes int32) ServerOption {
	return options.SetServer(func(o *options.Server) { o.Given.StreamBytes = bytes })
}

// UnknownServiceHandler sets the handler of calls to methods that are not registered.
// It gets a stream, even if the caller makes a unary call.
func UnknownServiceHandler(h grpc.StreamHandler) ServerOption {
	return options.SetServer(func(o *options.Server) { o.UnknownServices = h })
}

// ForceServerCodecV2 encodes and decodes all messages with c, whatever content-subtype
// the client requests.
func ForceServerCodecV2(c encoding.CodecV2) ServerOption {
	return options.SetServer(func(o *options.Server) { o.ForcedCodec = c })
}

// WaitForHandlers makes [Server.Stop] wait until all handlers have returned. The default is false.
func WaitForHandlers(wait bool) ServerOption {
	return options.SetServer(func(o *options.Server) { o.AwaitHandlers = wait })
}

// A Placement says on which goroutines handlers run: see [HandlerPlacement].
type Placement = options.Placement

const (
	// Auto runs the handler of a unary call in process on its caller's goroutine if the caller's
	// context cannot be cancelled. The goroutine that reads a connection from another process runs
	// unary handlers that have been quick so far. All other handlers run on goroutines of the
	// server.
	Auto Placement = options.Auto

	// Inline runs the handlers of all unary calls in process on their callers' goroutines, even
	// if the callers' contexts can be cancelled. This saves the switch to another goroutine,
	// which is most of the cost of a small call. In return a caller that is cancelled, or whose
	// deadline passes, waits until the handler returns. Use it if handlers are quick or watch
	// their contexts. For calls from other processes Inline is the same as Auto.
	Inline Placement = options.Inline

	// Workers runs all handlers on goroutines of the server. Use it in these cases:
	//
	//   - Handlers use runtime.Goexit or goroutine labels, so each needs its own goroutine.
	//   - A handler's panic must end the process instead of unwinding its caller's frames.
	//   - A usually quick handler that once takes longer must not delay the other calls of its
	//     connection by some milliseconds.
	//   - The program waits for callers after Close or Stop: see [ClientConn.Close].
	Workers Placement = options.OnWorkers
)

// HandlerPlacement sets the goroutines on which handlers run. The default is [Auto].
func HandlerPlacement(p Placement) ServerOption {
	return options.SetServer(func(o *options.Server) { o.PlaceHandlers = p })
}

// ImmutableMessages promises that the server's handlers and interceptors do not modify a message
// after it was received or sent. Then messages are passed to and from in-process clients without a
// deep copy, if the client makes the same promise with [WithImmutableMessages]: sender and receiver
// share nested messages, bytes and maps. With any other client messages are copied as usual.
//
// Size limits still apply. Messages that marshalling would refuse, such as those with
// invalid UTF-8, are not detected. Breaking the promise is a data race.
func ImmutableMessages() ServerOption {
	return options.SetServer(func(o *options.Server) { o.ServerImmutable = true })
}

// Creds sets the transport credentials of connections from other processes, for all listeners and
// all clients. Ordinary gRPC clients need TLS that offers the protocol h2, as
// [google.golang.org/grpc/credentials.NewTLS] does. Without credentials, or with those of package
// [google.golang.org/grpc/credentials/insecure], unix sockets count as private, and
// [UnixAuthInfo] identifies their peers on Linux. Connections in process are always private.
func Creds(creds credentials.TransportCredentials) ServerOption {
	return options.SetServer(func(o *options.Server) { o.ServerCreds = targets.Secured(creds) })
}

// KeepaliveParams sets the server's keepalive, and the maximum age and idle time of connections.
// As in gRPC, p.Time is at least 1 s and by default 2 h, p.Timeout is by default 20 s, and age and
// idle time are by default unlimited. In process the option has no effect.
func KeepaliveParams(p keepalive.ServerParameters) ServerOption {
	return options.SetServer(func(o *options.Server) { o.Given.Server = p })
}

// KeepaliveEnforcementPolicy limits how often a client can ping. As in gRPC, by default a client
// can ping once every 5 minutes, and not at all while it has no calls. nearcall's clients learn
// the policy and comply with it. A client that violates the policy is disconnected. In process the
// option has no effect.
func KeepaliveEnforcementPolicy(p keepalive.EnforcementPolicy) ServerOption {
	return options.SetServer(func(o *options.Server) { o.Given.Enforcement = p })
}

// InitialConnWindowSize sets the flow-control window of a connection from another process: how many
// bytes all of its callers together can send before the server has read them. The default is 2 MiB;
// the minimum is the window of a stream. In process only streams have windows.
func InitialConnWindowSize(bytes int32) ServerOption {
	return options.SetServer(func(o *options.Server) { o.Given.ConnBytes = bytes })
}

// MaxHeaderListSize limits the header of a call from another process, in bytes. The default is 16
// MiB, the minimum 16 KiB. As in grpc-go each entry counts 32 bytes in addition to its key and its
// value. Clients know the limit: a call with a larger header fails with Internal, as in grpc-go.
// For ordinary gRPC clients the default is 64 KiB and there is no minimum: HPACK lets a client
// send a header of any size as a few bytes, and grpc-go decodes it up to the limit. For web
// clients it is 64 KiB by default and at most 1 MiB, and a header can have one field for each 32
// bytes of the limit, but always up to 100 fields. In process there is no limit.
func MaxHeaderListSize(bytes uint32) ServerOption {
	return options.SetServer(func(o *options.Server) { o.Given.HeaderBytes = bytes })
}

// DisableSharedMemory makes connections stay sockets: those of unix: listeners, which become shared
// memory on Linux if a client of the same user offers it, and those over TCP, which move there if
// the client is on the same host. It has no effect on shm: listeners.
func DisableSharedMemory() ServerOption {
	return options.SetServer(func(o *options.Server) { o.NoSharedMemory = true })
}

// MaxSharedMemory limits the shared memory that all connections of the server use together, in
// bytes. The default is 1 GiB; 0 and less leave no room for any. [DisableSharedMemory] turns it
// off. A connection uses 520 KiB for both directions. While it sends messages of 32 KiB or more it
// uses up to 64 MiB more, which it releases 5 seconds after the last of them. Large messages that
// clients send count towards the clients' limits: see [WithMaxSharedMemory]. But if a client frees
// such memory while the server reads it, the memory can count for the server instead. It then uses
// up to a quarter of the limit in addition.
//
// Clients that do not read their replies cannot starve others. A connection gets more memory for
// large messages only if four times its total stays free for the others. An eighth of the limit is
// reserved for new connections.
//
// At the limit large messages are sent in pieces, unix: connections stay sockets, and clients of
// shm: targets wait for up to 5 seconds and are then refused. When a connection ends, large
// messages that have arrived count until the program receives them. Messages beyond the limit are
// lost: receiving one fails with ResourceExhausted. Package metrics reports the use.
func MaxSharedMemory(bytes int64) ServerOption {
	return options.SetServer(func(o *options.Server) { o.MaxMemory = max(bytes, 1) })
}

// DisableSpinning makes the server's connections block in the system as soon as they wait for
// input. By default a connection first spins for up to 200 microseconds. It does so if it has few
// open calls, carries no large messages and has not been quiet, and if spinning has paid off
// before. A call for which no thread must be woken takes a fraction of the time, and usually less
// processor time as well.
func DisableSpinning() ServerOption {
	return options.SetServer(func(o *options.Server) { o.NoSpinning = true })
}

// ConnectionTimeout limits how long the setup of a connection from another process can take,
// including the handshake of the credentials. After that time the server closes the connection.
// The default is 120 s. As in grpc-go, every connection fails if d is not positive.
func ConnectionTimeout(d time.Duration) ServerOption {
	if d <= 0 {
		d = -1 // the deadline has passed, also by a coarse clock; 0 is the default
	}
	return options.SetServer(func(o *options.Server) { o.HandshakeTime = d })
}

// A ClientKind is a set of kinds of clients other than nearcall's: see [OtherClients].
type ClientKind int

const (
	// GRPCClients are ordinary gRPC clients, in any language. A server takes them on all listeners
	// except those of inproc:, shm: and quic: targets.
	GRPCClients ClientKind = 1 << iota

	// WebClients are clients of Connect, with binary messages or JSON, and of gRPC-Web, over
	// HTTP/1.1 and HTTP/2, and of WebSockets. A server takes them on the same listeners as
	// GRPCClients. With TLS, [Creds] must be from [NewTLS] for WebSockets and for clients that
	// speak only HTTP/1.1.
	WebClients
)

// OtherClients sets which clients a server takes besides nearcall's: GRPCClients, WebClients, or 0
// for none. The default is GRPCClients|WebClients. If it does not take ordinary gRPC clients, they
// get the status Unimplemented with the reason as text. Listeners of ws: and wss: targets always
// take WebSockets.
func OtherClients(kinds ClientKind) ServerOption {
	return options.SetServer(func(o *options.Server) {
		o.TakesGRPC, o.TakesWeb = kinds&GRPCClients != 0, kinds&WebClients != 0
	})
}

// GRPCServerOptions adds options of grpc-go. Use it for options that nearcall does not have, such
// as orca's CallMetricsServerOption, [grpc.NumStreamWorkers] and the buffer sizes. They come after
// the options that nearcall derives from the server's.
//
// Interceptors in them apply to the calls of all clients. Everything else applies only to calls of
// ordinary gRPC clients. The option [grpc.Creds] has no effect: use [Creds]. As in grpc-go, options
// of connections and [grpc.InTapHandle] have no effect on [Server.ServeHTTP]. For all clients there
// is [InTapHandle].
func GRPCServerOptions(opts ...grpc.ServerOption) ServerOption {
	return options.SetServer(func(o *options.Server) { o.GRPCOptions = append(o.GRPCOptions, opts...) })
}
