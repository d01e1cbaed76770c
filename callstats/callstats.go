// Package callstats counts the calls of a server by method, and offers the counts as a gRPC
// service, which the command nearcall top shows.
//
//	calls := callstats.New()
//	srv := nearcall.NewServer(nearcall.StatsHandler(calls))
//	orderspb.RegisterOrdersServer(srv, &shop{})
//	calls.Register(srv)
//
// It works with a *grpc.Server as well. Everybody who can call the server can read the counts,
// unless an interceptor restricts that, as for any service.
//
// gRPC has two services for the state of servers, and neither tells what the calls of a method
// cost. channelz has counters for servers and sockets, not for methods, and no times. ORCA
// reports the load of a server as one number each for its processor, memory and calls, for load
// balancing.
//
// # What it costs
//
// The handler takes about 0.1 µs and one allocation for a call. But a server with a stats handler
// also makes the events for it: in nearcall these cost some 3 µs and 22 allocations for a unary
// call in process. [Stats.UnaryInterceptor] counts without them, in about 0.3 µs.
//
// Memory is 2 KB for each method of the server. Calls of methods that the server does not have
// are counted as one method, so that clients cannot make the memory grow.
package callstats

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/callstats/callstatspb"
)

// Stats counts calls. It is a [stats.Handler] for servers. Create it with [New], pass it to
// nearcall.StatsHandler or [grpc.StatsHandler], and register it with the same server.
type Stats struct {
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

// New returns a Stats that counts from now on.
func New() *Stats { return &Stats{since: time.Now()} }

// Register registers the service that offers the counts. Call it before the server serves. Stats
// knows the methods that the server has when its first call arrives. Calls of the service itself
// are not counted.
func (s *Stats) Register(srv Server) {
	s.server = srv
	callstatspb.RegisterCallStatsServer(srv, service{stats: s})
}

// A method has the counters of one method.
type method struct {
	begun atomic.Uint64
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
	m.ended[code].Add(1)
}

type methodKey struct{}

// TagRPC implements [stats.Handler].
func (s *Stats) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if m := s.method(info.FullMethodName); m != nil {
		return context.WithValue(ctx, methodKey{}, m)
	}
	return ctx
}

// method returns the counters of a method, nil for those that are not counted.
func (s *Stats) method(name string) *method {
	s.once.Do(s.learn)
	m, ok := s.methods[name]
	if !ok {
		return &s.others
	}
	return m
}

// learn reads which methods the server has. The methods of the service CallStats get no counters.
func (s *Stats) learn() {
	s.methods = make(map[string]*method)
	if s.server == nil {
		return
	}
	for name, info := range s.server.GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + name + "/" + m.Name
			s.methods[full] = nil
			if name != callstatspb.CallStats_ServiceDesc.ServiceName {
				s.methods[full] = new(method)
			}
		}
	}
}

// HandleRPC implements [stats.Handler].
func (s *Stats) HandleRPC(ctx context.Context, event stats.RPCStats) {
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
func (*Stats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler]. It does nothing.
func (*Stats) HandleConn(context.Context, stats.ConnStats) {}
