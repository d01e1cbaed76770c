// Package metrics has the figures of nearcall in this process: its sessions by path, why connections
// are not nearer, retries, reconnections and the use of shared memory. It also counts the calls of a
// server by method, and offers everything as a gRPC service for the command nearcall top.
//
//	calls := metrics.NewCalls()
//	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
//	orderspb.RegisterOrdersServer(srv, &shop{})
//	calls.Register(srv)
//
// [Read] returns the figures without a server. A [Calls] is an expvar.Var as well. The module
// [github.com/nearcall/nearcall/metrics/export] has readers for Prometheus and OpenTelemetry, in its
// packages nearprom and nearotel.
//
// [Calls] works with a *grpc.Server as well. Every client of the server can read the figures of the
// process. As for any service, an interceptor can restrict that.
//
// gRPC has two services for the state of servers, but they do not show the cost of a method's
// calls. channelz counts per server and socket, not per method, and has no times. ORCA
// reports the load of a server as one number each for its processor, memory and calls, for load
// balancing.
//
// # Sessions
//
// A session is a connection that carries calls. It counts from the end of its handshake until it has
// ended, on both sides if both are in this process. Two kinds of connections do not count: those of
// grpc-go for targets that go to it as a whole, such as grpc:TARGET, and those of a program's own
// HTTP server. A connection counts as a reconnection if the one before was lost or drained, but not
// if it was idle for too long.
//
// # Why a connection is not nearer
//
// A reason counts unix sockets that did not become shared memory, and connections to HOST:PORT targets
// that stayed on TCP. Each side counts its own:
//
//	disabled            DisableSharedMemory or WithDisableSharedMemory
//	declined            the peer declines, and counts why; the log has it, too
//	no_memory           MaxSharedMemory or WithMaxSharedMemory is reached
//	busy                too many other clients set up shared memory
//	other_user          the peer runs as another user
//	abstract_socket     the unix socket is abstract
//	wrapped_connection  something else than TLS is around the socket
//	own_dialer          WithContextDialer has made the connection over TCP
//	unsupported_system  this system has no shared memory
//	grpc_server         the server speaks only gRPC
//	other_host          the server is on another host
//	no_offer            the server of this host offers nothing, or something is in between
//	intercepted         a proxy or another network namespace is in between
//	failed              an error of the system or of the protocol, or no answer in time
//
// # What it costs
//
// The figures of the process cost a few atomic additions when a connection begins or ends and when a
// call is retried. They cost nothing per call. Reading them takes some microseconds.
//
// The stats handler takes about 0.1 µs and one allocation for a call. But a server with a stats handler
// also makes the events for it: in nearcall these cost some 3 µs and 22 allocations for a unary
// call in process. [Calls.UnaryInterceptor] counts without them, in about 0.3 µs.
//
// Memory is 2 KB for each method of the server. Calls of methods that the server does not have
// are counted as one method, so that clients cannot make the memory grow.
package metrics

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/metrics/metricspb"
)

// Calls counts calls. It is a [stats.Handler] for servers. Create it with [NewCalls], pass it to
// nearcall.StatsHandler or [grpc.StatsHandler], and register it with the same server.
type Calls struct {
	since  time.Time
	server Server

	once    sync.Once // guards methods, which the first call sets
	methods map[string]*method
	others  method // calls of methods that the server does not have
}

// A Server is a *nearcall.Server, a *grpc.Server, or another server that lists its services.
type Server interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// NewCalls returns a Calls that counts from now on.
func NewCalls() *Calls { return &Calls{since: time.Now()} }

// Register registers the service that offers the figures. Call it before the server serves. Calls
// knows the methods that the server has when its first call arrives. Calls of the service itself
// are not counted.
func (c *Calls) Register(srv Server) {
	c.server = srv
	metricspb.RegisterMetricsServer(srv, service{calls: c})
}

// A method has the counters of one method.
type method struct {
	begun atomic.Uint64
	took  atomic.Int64 // all calls that ended, in nanoseconds
	ended [known]atomic.Uint64
	times histogram
}

// known is the number of status codes of gRPC. Other codes count as Unknown.
const known = codes.Unauthenticated + 1

// end counts a call that took d and ended with err.
func (m *method) end(d time.Duration, err error) {
	code := status.Code(err)
	if code >= known {
		code = codes.Unknown
	}
	m.times.add(d)
	m.took.Add(int64(d))
	m.ended[code].Add(1)
}

type methodKey struct{}

// TagRPC implements [stats.Handler].
func (c *Calls) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if m := c.method(info.FullMethodName); m != nil {
		return context.WithValue(ctx, methodKey{}, m)
	}
	return ctx
}

// method returns the counters of a method, nil for those that are not counted.
func (c *Calls) method(name string) *method {
	c.once.Do(c.learn)
	m, ok := c.methods[name]
	if !ok {
		return &c.others
	}
	return m
}

// learn reads the list of the server's methods. The methods of the service Metrics get no
// counters.
func (c *Calls) learn() {
	c.methods = make(map[string]*method)
	if c.server == nil {
		return
	}
	for name, info := range c.server.GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + name + "/" + m.Name
			c.methods[full] = nil
			if name != metricspb.Metrics_ServiceDesc.ServiceName {
				c.methods[full] = new(method)
			}
		}
	}
}

// HandleRPC implements [stats.Handler].
func (c *Calls) HandleRPC(ctx context.Context, event stats.RPCStats) {
	switch e := event.(type) {
	case *stats.Begin:
		if m, ok := ctx.Value(methodKey{}).(*method); ok {
			m.begun.Add(1)
		}
	case *stats.End:
		if m, ok := ctx.Value(methodKey{}).(*method); ok {
			m.end(e.EndTime.Sub(e.BeginTime), e.Error)
		}
	}
}

// TagConn implements [stats.Handler]. It does nothing.
func (*Calls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler]. It does nothing.
func (*Calls) HandleConn(context.Context, stats.ConnStats) {}
