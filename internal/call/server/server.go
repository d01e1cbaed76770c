// Package server implements the callee's side of gRPC's calls, independently of the transport:
// services, handlers and their contexts, interceptors, and on which goroutine a call runs.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/message"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// Config is what a Server needs besides its options.
type Config struct {
	// Unary and Stream are interceptors that run after those of the options.
	Unary  []grpc.UnaryServerInterceptor
	Stream []grpc.StreamServerInterceptor

	// PeerConn returns the connection for calls to the peer of a session. If it is an
	// io.Closer, it is closed when the session has ended.
	PeerConn func(link.Session) grpc.ClientConnInterface
}

// A Server holds services and serves the calls of any number of sessions.
type Server struct {
	opts      *options.Server
	cfg       Config
	forward   *forward      // nil if no calls are forwarded
	forced    message.Codec // of all calls; nil for that of the content-subtype
	unary     grpc.UnaryServerInterceptor
	stream    grpc.StreamServerInterceptor
	stats     stats.Handler
	codec     message.Codec // of calls with no or an unknown content-subtype
	scheduler scheduler

	mu       sync.Mutex
	services map[string]*service
	methods  map[string]*method // by full name; read without mu once started
	started  bool
	conns    map[*serverConn]struct{}
	stopping bool // new sessions and calls are refused

	stopNow  chan struct{} // closed when Stop is called
	stopOnce sync.Once
}

// New returns a server without services.
func New(o *options.Server, cfg Config) *Server {
	s := &Server{
		opts:      o,
		cfg:       cfg,
		forward:   newForward(o),
		unary:     call.Chain(slices.Concat(o.ServerUnaryChain, cfg.Unary), call.JoinUnaryServer),
		stream:    call.Chain(slices.Concat(o.ServerStreamChain, cfg.Stream), call.JoinStreamServer),
		stats:     call.JoinStats(o.ServerStats),
		codec:     call.DefaultCodec(),
		scheduler: scheduler{place: o.PlaceHandlers, labels: labelsMethods()},
		services:  make(map[string]*service),
		methods:   make(map[string]*method),
		conns:     make(map[*serverConn]struct{}),
		stopNow:   make(chan struct{}),
	}
	if o.ForcedCodec != nil {
		s.forced = codec.WrapV2(o.ForcedCodec)
	}
	return s
}

// Register adds a service. If loop is not nil, its handlers run on loop. Register panics
// if impl has the wrong type, if the service was registered before, and after the first
// Serve or the first call. In these cases grpc-go ends the process.
func (s *Server) Register(desc *grpc.ServiceDesc, impl any, loop wait.Loop) {
	if impl != nil {
		want := reflect.TypeOf(desc.HandlerType).Elem()
		if got := reflect.TypeOf(impl); !got.Implements(want) {
			panic(fmt.Sprintf("nearcall: RegisterService of %s: the handler of type %v does not satisfy %v; implement its missing methods", desc.ServiceName, got, want))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		panic(fmt.Sprintf("nearcall: RegisterService of %s after the first Serve or the first call; register all services before", desc.ServiceName))
	}
	if s.services[desc.ServiceName] != nil {
		panic(fmt.Sprintf("nearcall: RegisterService found a duplicate: %s is registered already", desc.ServiceName))
	}
	s.services[desc.ServiceName] = &service{desc, impl}
	hands := loop != nil && loop.AllowsHandoff()
	guard, _ := impl.(Guard)
	for i := range desc.Methods {
		m := &desc.Methods[i]
		s.add(&method{name: "/" + desc.ServiceName + "/" + m.MethodName, impl: impl, guard: guard, loop: loop, runsOnCaller: hands, unary: m})
	}
	for i := range desc.Streams {
		m := &desc.Streams[i]
		s.add(&method{name: "/" + desc.ServiceName + "/" + m.StreamName, impl: impl, loop: loop, runsOnCaller: hands, stream: m})
	}
}

// add adds a method if the server has none of that name. So if a unary and a streaming method
// have the same name, calls go to the unary one, which Register adds first.
func (s *Server) add(m *method) {
	if s.methods[m.name] == nil {
		m.invalid = !link.ValidText(m.name)
		s.methods[m.name] = m
	}
}

// A service is a registered service.
type service struct {
	desc *grpc.ServiceDesc
	impl any
}

// RegisterWith registers all services with another server.
func (s *Server) RegisterWith(other grpc.ServiceRegistrar) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, svc := range s.services {
		other.RegisterService(svc.desc, svc.impl)
	}
}

// LoopOf returns the loop that runs the handlers of the method with a full name, or nil if there is
// none. It must be called after Start.
func (s *Server) LoopOf(full string) wait.Loop {
	if m := s.methods[full]; m != nil {
		return m.loop
	}
	return nil
}

// Unregistered returns a handler of calls to methods that are not registered, for a
// *grpc.Server with the same services, or nil if the *grpc.Server must refuse such calls.
func (s *Server) Unregistered() grpc.StreamHandler {
	if s.forward == nil {
		return s.opts.UnknownServices
	}
	return func(_ any, stream grpc.ServerStream) error {
		full, _ := grpc.MethodFromServerStream(stream)
		m := s.unregistered(full)
		if m.refusal != nil {
			return m.refusal.Err()
		}
		return m.stream.Handler(nil, stream)
	}
}

// Info implements reflection's GetServiceInfo.
func (s *Server) Info() map[string]grpc.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]grpc.ServiceInfo, len(s.services))
	for name, svc := range s.services {
		info := grpc.ServiceInfo{Metadata: svc.desc.Metadata}
		for _, m := range svc.desc.Methods {
			info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.MethodName})
		}
		for _, m := range svc.desc.Streams {
			info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.StreamName, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams})
		}
		all[name] = info
	}
	s.forward.addTo(all)
	return all
}

// Start ends registration. It reports false if the server was stopped.
func (s *Server) Start() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	return !s.stopping
}

// Accept returns the Acceptor for a new session, or nil if the server was stopped.
func (s *Server) Accept(session link.Session) link.Acceptor {
	c := newServerConn(s, session)
	if !s.addConn(c) {
		return nil
	}
	return c
}

// addConn adds a new connection. It returns false if the server was stopped.
func (s *Server) addConn(c *serverConn) bool {
	s.mu.Lock()
	s.started = true
	if s.stopping {
		s.mu.Unlock()
		return false
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if !c.peer.Undecided {
		c.reportBegin()
	}
	return true
}

func (s *Server) forget(c *serverConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// lookup returns the method for a full name. If there is none, the result refuses or
// forwards all calls.
func (s *Server) lookup(full string) *method {
	if m := s.methods[full]; m != nil {
		return m
	}
	m := s.unregistered(full)
	m.invalid = !link.ValidText(full)
	return m
}

// unregistered returns the method for a name that is not registered.
func (s *Server) unregistered(full string) *method {
	m := &method{name: full}
	service, name, ok := serviceOf(full)
	switch {
	case !ok:
		m.refusal = status.Newf(codes.Unimplemented, "malformed method name: %q", quotable(full))
	case s.forwards(service):
		return s.forward.method(full)
	case s.opts.UnknownServices != nil:
		m.stream = &grpc.StreamDesc{StreamName: "unknown", Handler: s.opts.UnknownServices, ClientStreams: true, ServerStreams: true}
	case s.services[service] == nil:
		m.refusal = status.Newf(codes.Unimplemented, "unknown service %v", quotable(service))
	default:
		m.refusal = status.Newf(codes.Unimplemented, "unknown method %v for service %v", quotable(name), service)
	}
	return m
}

// maxName limits names that callers choose, in bytes. A longer name selects no codec, and a status
// quotes only the first maxName bytes of a name. A caller sends its profile once, and then only a
// few bytes for each call, so the server's work for a call must not grow with the profile.
const maxName = 256

// quotable returns the part of a name that a status quotes.
func quotable(name string) string {
	if len(name) <= maxName {
		return name
	}
	return name[:maxName] + "..."
}

// codecOf returns the codec of the messages of a call of m.
func (s *Server) codecOf(m *method, o *link.CallHeader) message.Codec {
	if m.codec != nil {
		return m.codec
	}
	own := s.codecFor(o.ContentSubtype)
	if o.Shared {
		return codec.Sharing(own)
	}
	return own
}

// codecFor returns the codec of a content-subtype: the configured one, otherwise the subtype's,
// otherwise the default.
func (s *Server) codecFor(subtype string) message.Codec {
	if s.forced != nil {
		return s.forced
	}
	if c := codecNamed(subtype); c != nil {
		return c
	}
	return s.codec
}

// codecNamed returns the codec of a content-subtype, nil if there is none.
func codecNamed(subtype string) message.Codec {
	if subtype == "" || len(subtype) > maxName {
		return nil
	}
	if c, ok := codec.Get(subtype); ok {
		return c
	}
	if subtype == codec.NameJSON {
		return jsonCodec
	}
	return nil
}

// jsonCodec is the codec of the content-subtype json if the user has registered none.
var jsonCodec = codec.JSON()

// shares reports whether messages are shared with clients that share theirs. They are not if a
// codec other than protobuf's is configured or registered, because that codec must see them.
func (s *Server) shares() bool {
	return s.opts.ServerImmutable && s.forced == nil && s.codec == codec.Proto()
}

// errStopped is the reason for which a stopping server closes sessions. It is not a status error,
// because clients get only its text and make a status from that.
var errStopped = errors.New("the server was stopped")

// Stop closes all sessions, which cancels their calls. It waits for the sessions to end,
// and for running handlers if AwaitHandlers is set.
func (s *Server) Stop() {
	conns := s.stop()
	s.stopOnce.Do(func() { close(s.stopNow) })
	for _, c := range conns {
		_ = c.session.Close(errStopped)
	}
	for _, c := range conns {
		<-c.ended
		if s.opts.AwaitHandlers {
			<-c.idle
		}
	}
	s.scheduler.close()
}

// GracefulStop asks all peers to make no more calls, waits for those that they have made, closes
// all sessions and waits until the sessions have sent everything. When it returns, the process may
// exit without losing a reply. A concurrent Stop cancels the running calls and ends the waits for
// peers.
func (s *Server) GracefulStop() {
	conns := s.stop()
	drained := make([]<-chan struct{}, len(conns))
	for i, c := range conns {
		drained[i] = c.session.Drain()
	}
	for i, c := range conns { // a separate loop, so that all sessions drain at the same time
		select {
		case <-drained[i]: // no call is on its way any more
		case <-s.stopNow:
		}
		c.drain()
	}
	for _, c := range conns {
		<-c.idle
		_ = c.session.Close(errStopped)
	}
	for _, c := range conns { // a separate loop, so that all sessions end at the same time
		<-c.ended
		select {
		case <-c.gone:
		case <-s.stopNow:
		}
	}
	s.scheduler.close()
}

func (s *Server) stop() []*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started, s.stopping = true, true
	return slices.Collect(maps.Keys(s.conns))
}

// Method describes the method with a full name. It must be called after Start.
func (s *Server) Method(full string) link.Method {
	m := s.methods[full]
	if m == nil {
		return link.Method{}
	}
	return link.Method{Known: true, Streams: m.clientStreams() || m.serverStreams(), NoSideEffects: link.HasNoSideEffects(full)}
}

// HasCodec reports whether the server has a codec for a content-subtype.
func (s *Server) HasCodec(subtype string) bool {
	return s.forced != nil && subtype == s.forced.Name() || codecNamed(subtype) != nil
}

// Compressors returns the names of the registered compressors. The result must not be modified.
func Compressors() []string { return grpcinside.CompressorNames() }

// Taps reports whether the server has a tap handle.
func (s *Server) Taps() bool { return s.opts.TapHandle != nil }

// AskTap asks the tap handle about a call with the context ctx. It returns the call's new context, or
// why the call is refused.
func (s *Server) AskTap(ctx context.Context, info *tap.Info) (context.Context, *status.Status) {
	tapped, err := s.opts.TapHandle(ctx, info)
	if err != nil {
		if st, ok := status.FromError(err); ok {
			return nil, st
		}
		return nil, status.New(codes.PermissionDenied, err.Error())
	}
	if tapped.Err() != nil {
		return nil, status.New(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}
	return tapped, nil
}

// forwards reports whether calls to service are forwarded. The server's own services are
// not. Services that the forward does not have go to UnknownServiceHandler, if it is set.
func (s *Server) forwards(service string) bool {
	f := s.forward
	if f == nil || s.services[service] != nil {
		return false
	}
	f.learn()
	return f.has[service] || s.opts.UnknownServices == nil
}
