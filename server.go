package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/grpcserver"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/targets"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
	"github.com/nearcall/nearcall/internal/transport/web"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/loop"
)

// A Server serves gRPC services to nearcall clients in this and other processes. It implements
// [grpc.ServiceRegistrar] for generated RegisterXServer functions, and GetServiceInfo for
// reflection. All methods are safe for concurrent use.
//
// Create a Server with [NewServer], register services, then call [Server.Serve] for
// each listener or [Server.Client] for clients in this process.
type Server struct {
	core    *server.Server
	opts    *options.Server
	sockets sock.Options       // of connections from other processes; its Config is that of opts
	web     *web.Server        // for HTTP clients
	grpc    *grpcserver.Server // for ordinary gRPC clients

	// See stop.go.
	mu        sync.Mutex
	listeners map[net.Listener]int // how many times each is being served
	begun     stopKind             // which stops have begun
	drained   chan struct{}        // closed when the graceful stop is over
	closed    chan struct{}        // closed when the hard stop is over
	serving   sync.WaitGroup       // counts listeners; none is added once a stop has begun
}

// NewServer returns a server without services. It accepts no calls before
// [Server.Serve] or [Server.Client] is called.
func NewServer(opts ...ServerOption) *Server {
	o := options.NewServer(opts)
	s := &Server{opts: o, listeners: make(map[net.Listener]int), drained: make(chan struct{}), closed: make(chan struct{})}
	s.sockets = sock.Options{Options: nearpath.Options{Config: &o.Connections, Upgrade: targets.SharedMemory(&o.Connections, true)}, Unix: unixAuthInfo}
	unary, stream := grpcinside.InterceptorsOf(o.GRPCOptions)
	s.core = server.New(o, server.Config{Unary: unary, Stream: stream, PeerConn: s.peerConn})
	s.grpc = grpcserver.New(s.grpcConfig)
	s.web = s.webServer()
	return s
}

// RegisterService registers a service and its implementation. Generated code calls it.
// It panics if impl does not implement the service, if the service is already registered, and
// after the first Serve or the first call. grpc-go ends the process then.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) { s.core.Register(desc, impl, nil) }

// OnLoop returns a registrar for services whose handlers run on l, one at a time, so the state of
// such a service needs no lock. A handler is a task of l. It yields the loop while it waits in
// Send or Recv of its stream, in calls that it makes with its context, in [loop.Sleep] and in
// [loop.Await]. Any other wait blocks the loop. Interceptors and stats handlers of the service's
// calls run on the loop, too, except the stats handlers of ordinary gRPC clients' calls.
//
// A caller returns at once when its deadline passes or it cancels, even if the loop is busy; see
// [loop.Coroutines] for an exception. Calls that arrive after l was closed fail with Unavailable.
// The server does not close l. OnLoop panics if l is nil.
func (s *Server) OnLoop(l *loop.Loop) Registrar {
	if l == nil {
		panic("nearcall: OnLoop needs a loop; make one with loop.New")
	}
	return registrar{s, wait.LoopOf(l)}
}

// A Registrar registers services with a server, and lists the services of that server.
// It is a [grpc.ServiceRegistrar], for generated RegisterXServer functions, and is
// accepted by reflection.Register and by the InitializeMetrics of Prometheus'
// interceptors. *[Server] and *[grpc.Server] implement it, too.
type Registrar interface {
	grpc.ServiceRegistrar

	// GetServiceInfo returns all services of the server by name, including those
	// registered through other registrars.
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// A registrar registers services whose handlers run on a loop.
// It implements [grpc.ServiceRegistrar] and [Registrar].
type registrar struct {
	server *Server
	loop   wait.Loop
}

func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	r.server.core.Register(desc, impl, r.loop)
}

func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo { return r.server.GetServiceInfo() }

// GetServiceInfo returns the registered services by name, including those on loops.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.core.Info() }

// Serve accepts clients from lis and serves them until lis fails or the server is stopped. It
// closes lis, once. When the server is stopped, Serve returns nil as soon as [Server.Stop],
// [Server.GracefulStop] or [Server.Shutdown] has done its work. So a program whose main function
// returns after Serve loses no reply. If Serve is called on a stopped server, it returns
// [grpc.ErrServerStopped]. A server can serve several listeners at a time.
//
// lis comes from [Listen] or is any other net.Listener, such as one from package net, from
// tls.NewListener or from systemd's socket activation, or a bufconn. One listener serves all kinds
// of clients: nearcall's own, ordinary gRPC clients in any language, and clients with Connect,
// JSON or gRPC-Web over HTTP/1.1 or HTTP/2. The first bytes of a connection tell them apart.
// Ordinary gRPC clients are served by a grpc.Server with the same services, interceptors, stats
// handlers and limits. See also [OtherClients]. Clients of other protocols get an error that says
// what the server is.
func (s *Server) Serve(lis net.Listener) error {
	if lis == nil {
		return fmt.Errorf("nearcall: Serve needs a listener; get one from nearcall.Listen")
	}
	sessions, ok := lis.(link.Listener)
	if l, ok := lis.(registry.Listener); ok {
		if err := targets.Configure(l, s.opts); err != nil {
			_ = lis.Close()
			return fmt.Errorf("nearcall: cannot serve %s: %w", l.Target(), err)
		}
	}
	if !ok {
		l, _ := lis.(targets.Socket)
		if err := l.Check(s.opts); err != nil {
			_ = lis.Close()
			return fmt.Errorf("nearcall: cannot serve %s: %w", l.Target(), err)
		}
		if l.Listener != nil {
			lis = l.Listener
		}
		over := s.sessionsOver(lis, l)
		sessions, lis = over, over // its Close ends handshakes, too
	}
	if !s.open(lis) {
		_ = lis.Close()
		return grpc.ErrServerStopped
	}
	err := sessions.Sessions(s.accept)
	served := errors.Is(err, link.ErrServed) // by another server, which keeps the listener
	if !served {
		_ = lis.Close()
	}
	s.remove(lis)
	switch {
	case served:
		return fmt.Errorf("nearcall: cannot serve: %w", err)
	case s.awaitStop():
		return nil
	case err == nil:
		err = fmt.Errorf("nearcall: the listener at %v was closed: %w", lis.Addr(), net.ErrClosed)
	}
	return err
}

// sessionsOver returns a listener of sessions over the connections that lis accepts. target is the
// Socket to which lis belongs, or the zero Socket if there is none.
func (s *Server) sessionsOver(lis net.Listener, target targets.Socket) *sock.Listener {
	o := s.sockets
	o.RequireUpgrade = target.NeedsUpgrade
	over := &sock.Listener{Listener: lis, Options: o, Path: target.Path, Near: isBareTCP(lis)}
	if s.opts.TakesWeb || target.Path != "" {
		over.HTTP1 = s.web.Take
	}
	if s.opts.TakesWeb || s.opts.TakesGRPC {
		over.HTTP2 = s.web.TakeHTTP2 // refuses web clients, in words, if the server does not take them
	}
	if s.opts.TakesGRPC {
		over.GRPC = s.takeGRPC
	}
	over.Mixes = s.opts.TakesWeb && !s.opts.HasGRPCOptions() // net/http knows of no GRPCServerOptions
	return over
}

// isBareTCP reports whether lis is a TCP listener of package net, or one of tls.NewListener over
// such a listener. Another listener may close the connections that it has accepted, and calls on a
// nearer path would go on.
func isBareTCP(lis net.Listener) bool {
	if _, ok := lis.(*net.TCPListener); ok {
		return true
	}
	v := reflect.Indirect(reflect.ValueOf(lis))
	if v.Kind() != reflect.Struct || v.Type().PkgPath() != "crypto/tls" {
		return false
	}
	inner := v.FieldByName("Listener") // embedded, and so exported
	if !inner.IsValid() {
		return false
	}
	below, _ := inner.Interface().(net.Listener)
	return isBareTCP(below)
}

// ServeConn serves one connection that the program already has, such as one end of a pair of
// sockets or of a [net.Pipe], a stream that it has hijacked from another protocol, its standard
// input and output, or an SSH channel. ServeConn serves it like a connection that Serve has
// accepted, with the server's credentials. The client can be of any kind that Serve takes. Only a
// *[net.UnixConn] can become shared memory. A nearcall client gets its end of the connection from
// [WithContextDialer].
//
// For a pair of sockets the system knows only the process that made it. If that is this process,
// handlers do not get a [UnixAuthInfo]. If another process has made the pair, the UnixAuthInfo
// names that process.
//
// ServeConn owns conn and closes it. It returns when the connection has ended. The result is nil
// if the handshake succeeded. Otherwise it is the error of the handshake, such as that of its time
// limit, [ConnectionTimeout]. When the server is stopped, ServeConn returns as Serve does, with
// [grpc.ErrServerStopped] if the handshake had not succeeded before.
func (s *Server) ServeConn(conn net.Conn) error {
	if conn == nil {
		return errors.New("nearcall: ServeConn needs a connection")
	}
	one := s.sessionsOver(nil, targets.Socket{})
	one.Options.Unix = func(p sockopt.Process) credentials.AuthInfo {
		if p.PID == os.Getpid() { // this process has made the pair of sockets, and may have passed the other end on
			return link.Private
		}
		return s.sockets.Unix(p)
	}
	if !s.open(one) {
		_ = conn.Close()
		return grpc.ErrServerStopped
	}
	wait, err := one.ServeConn(conn, s.accept)
	if b, ok := conn.(*sniff.Begun); ok {
		close(b.Over)
	}
	s.remove(one)
	failed := err != nil
	if !failed {
		err = wait()
	}
	switch {
	case s.awaitStop():
		if failed {
			return grpc.ErrServerStopped
		}
		return nil
	case err != nil:
		return fmt.Errorf("nearcall: cannot serve the connection: %w", err)
	}
	return nil
}

// accept accepts a session.
func (s *Server) accept(session link.Session) link.Acceptor {
	if s.opts.AcceptSession != nil {
		return s.opts.AcceptSession(session)
	}
	return s.core.Accept(session)
}

// Client returns an in-process connection to the server. It needs neither a target nor Serve.
// Options about connecting and the network have no effect; an invalid [WithDefaultServiceConfig]
// makes calls fail with Unavailable. Close the connection when it is no longer needed. After the
// server was stopped, calls over the connection return Unavailable.
func (s *Server) Client(opts ...DialOption) *ClientConn {
	o := options.NewClient(opts)
	how := connector.Config{Dialer: o.SessionDialer, Backoff: targets.NearBackoff}
	if how.Dialer == nil {
		how.Dialer = serverDialer{s, inproc.Options{Config: &o.Connections, Accept: acceptPeer(o, nil)}}
	}
	c, _ := newOneServer("inproc:", "localhost", how, o) // with an error, its calls fail
	c.persist()
	return c.of
}

// serverDialer dials a server of this process directly, without a name.
type serverDialer struct {
	server *Server
	opts   inproc.Options
}

// Dial implements [link.Dialer].
func (d serverDialer) Dial(context.Context) (link.Session, error) {
	return inproc.Connect("localhost", d.opts, d.server.core.Accept)
}
