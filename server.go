package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/grpcserver"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/registry"
	"github.com/nearcall/nearcall/internal/targets"
	"github.com/nearcall/nearcall/internal/transport/http1"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
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
	core    *call.Server
	opts    *options.Server
	sockets sock.Options  // of connections from other processes
	web     *http1.Server // for HTTP clients

	mu        sync.Mutex
	grpc      *grpcserver.Server // of ordinary gRPC clients; nil before the first connects
	listeners map[*listening]struct{}
	stopped   bool // no further listener is served; handshakes may still go on
	settled   bool // no handshake goes on, either
	serving   sync.WaitGroup

	done     chan struct{} // closed when Stop or GracefulStop has done its work
	doneOnce sync.Once
}

// listening is the listener of one Serve or ServeConn. Only the goroutine that removes it from the
// server's set closes it, so it is closed once: a second Close of a user's listener could do
// anything.
type listening struct {
	net.Listener
	over chan struct{} // closed when all handshakes have ended
}

// NewServer returns a server without services. It accepts no calls before
// [Server.Serve] or [Server.Client] is called.
func NewServer(opts ...ServerOption) *Server {
	o := options.NewServer(opts)
	s := &Server{opts: o, sockets: o.Socket, listeners: make(map[*listening]struct{}), done: make(chan struct{})}
	s.sockets.Unix, s.sockets.Upgrade = unixAuthInfo, targets.SharedMemory(o.Memory, true)
	cfg := o.ServerConfig
	unary, stream := grpcinside.InterceptorsOf(o.GRPC)
	cfg.Unary, cfg.Stream = slices.Concat(cfg.Unary, unary), slices.Concat(cfg.Stream, stream)
	cfg.PeerConn = s.peerConn
	s.core = call.NewServer(cfg)
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
// closes lis, once. When [Server.Stop] or [Server.GracefulStop] is called, Serve waits until that
// has done its work, and returns nil. So a program whose main function returns after Serve loses
// no reply. If Serve is called on a stopped server, it returns [grpc.ErrServerStopped]. A server
// can serve several listeners at a time.
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
		if err := targets.Configure(l, s.sockets, s.opts.StatelessResetKey); err != nil {
			_ = lis.Close()
			return fmt.Errorf("nearcall: cannot serve %s: %w", l.Target(), err)
		}
	}
	if !ok {
		l, _ := lis.(targets.Socket)
		if l.NeedsTLS && s.sockets.Creds == nil {
			_ = lis.Close()
			return fmt.Errorf("nearcall: cannot serve %s: a server of a wss: target needs the option Creds, with nearcall.NewTLS", l.Target())
		}
		if l.Listener != nil {
			lis = l.Listener
		}
		over := s.sessionsOver(lis, l)
		sessions, lis = over, over // its Close ends handshakes, too
	}
	open := s.open(lis)
	if open == nil {
		_ = lis.Close()
		return grpc.ErrServerStopped
	}
	err := sessions.Sessions(s.accept)
	served := errors.Is(err, link.ErrServed) // by another server, which keeps the listener
	mine, stopped := s.remove(open)
	if mine && !served {
		_ = lis.Close()
	}
	close(open.over)
	s.serving.Done()
	if served {
		return fmt.Errorf("nearcall: cannot serve: %w", err)
	}
	if stopped {
		<-s.done
		return nil
	}
	if err == nil {
		err = fmt.Errorf("nearcall: the listener at %v was closed: %w", lis.Addr(), net.ErrClosed)
	}
	return err
}

// sessionsOver returns a listener of sessions over the connections that lis accepts. target is the
// Socket to which lis belongs, or the zero Socket if there is none.
func (s *Server) sessionsOver(lis net.Listener, target targets.Socket) *sock.Listener {
	o := s.sockets
	o.RequireUpgrade = target.NeedsUpgrade
	o.NoUpgrade = o.NoUpgrade && !target.NeedsUpgrade
	over := &sock.Listener{Listener: lis, Options: o, Path: target.Path, Near: isBareTCP(lis)}
	if s.opts.WebClients || target.Path != "" {
		over.HTTP1 = s.web.Take
	}
	if s.opts.WebClients || s.opts.GRPCClients {
		over.HTTP2 = s.web.TakeHTTP2 // refuses web clients, in words, if the server does not take them
	}
	if s.opts.GRPCClients {
		over.GRPC = s.takeGRPC
	}
	over.Mixes = s.opts.WebClients && len(s.opts.GRPC) == 0 // net/http knows of no GRPCServerOptions
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

// open adds lis to the listeners that Stop closes and waits for. It returns nil if the server was
// stopped.
func (s *Server) open(lis net.Listener) *listening {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.core.Start()
	open := &listening{lis, make(chan struct{})}
	s.listeners[open] = struct{}{}
	s.serving.Add(1)
	return open
}

// remove undoes what open did, except its change of s.serving. mine reports whether the caller
// must close the listener.
func (s *Server) remove(open *listening) (mine, stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, mine = s.listeners[open]
	delete(s.listeners, open)
	return mine, s.stopped
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
// limit, [ConnectionTimeout]. When [Server.Stop] or [Server.GracefulStop] is called, ServeConn
// waits until that has done its work. It returns [grpc.ErrServerStopped] if the server was stopped
// before the handshake succeeded.
func (s *Server) ServeConn(conn net.Conn) error {
	if conn == nil {
		return errors.New("nearcall: ServeConn needs a connection")
	}
	one := s.sessionsOver(nil, targets.Socket{})
	one.Options.Unix = func(p sock.Process) credentials.AuthInfo {
		if p.PID == os.Getpid() { // this process has made the pair of sockets, and may have passed the other end on
			return link.Private
		}
		return s.sockets.Unix(p)
	}
	open := s.open(one)
	if open == nil {
		_ = conn.Close()
		return grpc.ErrServerStopped
	}
	wait, err := one.ServeConn(conn, s.accept)
	if b, ok := conn.(*sock.Begun); ok {
		close(b.Over)
	}
	s.remove(open)
	close(open.over)
	s.serving.Done()
	failed := err != nil
	if !failed {
		err = wait()
	}
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	switch {
	case stopped:
		<-s.done
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
	if s.opts.Accept != nil {
		return s.opts.Accept(session)
	}
	return s.core.Accept(session)
}

// Stop closes all listeners and connections and cancels running calls, whose callers get
// Unavailable. It waits for handlers to return only if [WaitForHandlers] is set. A caller
// whose own goroutine runs the handler gets Unavailable when the handler returns: see
// [ClientConn.Close]. A web client over HTTP/2 also gets it then, or loses its connection after
// a second.
func (s *Server) Stop() {
	var inner sync.WaitGroup
	if g := s.closeListeners(); g != nil {
		inner.Go(g.Stop)
	}
	s.core.Stop()
	s.web.Close(false)
	inner.Wait()
	s.serving.Wait()
	s.doneOnce.Do(func() { close(s.done) })
}

// GracefulStop closes all listeners, refuses new calls with Unavailable, and waits until running
// calls have ended and their callers have received everything that was sent to them. Calls that a
// client has made before it learns that the server is stopping are not refused. When GracefulStop
// returns the program can exit. Clients that connected before GracefulStop was called get a second
// for their handshake, so that a restart loses no call: see [TakeOver].
//
// It gives up on a client in another process that has read nothing for 10 seconds after the last
// handler of its calls returned. It also gives up on a web client that has sent nothing of
// its unary request for 5 seconds. A concurrent [Server.Stop] cuts the wait short: Stop cancels
// the contexts of the handlers, and GracefulStop returns when they have returned. A caller whose
// own goroutine runs the handler is released when the handler returns: see [ClientConn.Close].
// Calls of ordinary gRPC clients end as with the GracefulStop of grpc-go, which waits for a client
// for as long as its connection lasts.
func (s *Server) GracefulStop() {
	s.retireListeners()
	s.web.Drain() // before calls are refused
	var inner sync.WaitGroup
	if g := s.closeListeners(); g != nil {
		inner.Go(g.GracefulStop)
	}
	s.core.GracefulStop()
	inner.Wait()
	s.web.Close(true)
	s.serving.Wait()
	s.doneOnce.Do(func() { close(s.done) })
}

// retireListeners closes all listeners. It waits for the handshakes of connections that
// clients have already made to sockets. No listener is added later.
func (s *Server) retireListeners() {
	s.mu.Lock()
	s.stopped = true
	var others, retiring []*listening
	for open := range s.listeners {
		if l, ok := open.Listener.(*sock.Listener); ok {
			l.Retire()
			retiring = append(retiring, open)
		} else {
			delete(s.listeners, open)
			others = append(others, open)
		}
	}
	s.mu.Unlock()
	for _, open := range others {
		_ = open.Close()
	}
	for _, open := range retiring {
		<-open.over
	}
}

// closeListeners closes all listeners and returns the server for ordinary gRPC clients, or
// nil if there is none. No listener and no such server is added later.
func (s *Server) closeListeners() *grpcserver.Server {
	s.mu.Lock()
	s.stopped, s.settled = true, true
	open, inner := s.listeners, s.grpc
	s.listeners = nil
	s.mu.Unlock()
	for lis := range open {
		_ = lis.Close()
	}
	return inner
}

// Client returns an in-process connection to the server. It needs neither a target nor Serve.
// Options about connecting and the network have no effect; an invalid [WithDefaultServiceConfig]
// makes calls fail with Unavailable. Close the connection when it is no longer needed. After the
// server was stopped, calls over the connection return Unavailable.
func (s *Server) Client(opts ...DialOption) *ClientConn {
	o := options.NewDial(opts)
	serve(o, nil)
	how := connector.Config{Dialer: o.Dialer, Backoff: targets.NearBackoff}
	if o.Dialer == nil {
		how.Dialer = serverDialer{s, inproc.Options{Window: o.Socket.Window, Accept: o.Accept}}
	}
	return newOneServer("inproc:", "localhost", how, o).of
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
