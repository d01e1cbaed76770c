package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/hook"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/loop"
)

// A Server serves gRPC services. It implements [grpc.ServiceRegistrar], so
// that generated RegisterXServer functions take it, and the GetServiceInfo
// that reflection wants. Its methods may be called by any goroutine.
type Server struct {
	core    *call.Server
	sockets sock.Options // of connections from other processes

	mu        sync.Mutex
	listeners map[*listening]struct{}
	stopped   bool
	serving   sync.WaitGroup
}

// listening is the listener of one Serve. Whoever takes it from the server's set
// closes it, so that it is closed once: a second Close of somebody else's listener
// may do anything.
type listening struct{ net.Listener }

// NewServer returns a server without services, which serves nobody until
// [Server.Serve] or [Server.Client] is called.
func NewServer(opts ...ServerOption) *Server {
	o := defaultServerOptions()
	for _, opt := range opts {
		if opt != nil {
			opt.applyServer(&o)
		}
	}
	return &Server{core: call.NewServer(o.config()), sockets: o.sockets(), listeners: make(map[*listening]struct{})}
}

// RegisterService registers a service and its implementation. It is called by
// generated code. It panics where grpc-go ends the process: when impl does not
// implement the service, when the service is registered already, and after the
// first Serve or the first call.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) { s.core.Register(desc, impl, nil) }

// On returns a registrar of services whose handlers run on l, one at a time: the
// state of such a service needs no lock. A handler is a task of l. It gives the loop
// to others while it waits in Send and Recv of its stream, in calls that it makes
// with its context, in [loop.Sleep] and [loop.Await]; what it waits for otherwise
// holds up the loop. Interceptors and stats handlers of its calls run there, too.
//
// A caller's deadline or cancellation ends the caller's wait at once, whatever the
// loop is busy with. Calls that arrive once l is closed fail with Unavailable. The
// server does not close l.
func (s *Server) On(l *loop.Loop) Registrar {
	if l == nil {
		panic("nearcall: On needs a loop; make one with loop.New")
	}
	return registrar{s, hook.Loop(l)}
}

// A Registrar registers services with a server, and tells which the server has. It
// is a [grpc.ServiceRegistrar], for generated RegisterXServer functions, and what
// reflection.Register and the InitializeMetrics of Prometheus' interceptors take.
// *[Server] and *[grpc.Server] implement it, too.
type Registrar interface {
	grpc.ServiceRegistrar

	// GetServiceInfo returns all services of the server by name, whichever
	// registrar they came through.
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// A registrar registers services whose handlers run on a loop.
type registrar struct {
	server *Server
	loop   wait.Loop
}

// RegisterService implements [grpc.ServiceRegistrar].
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	r.server.core.Register(desc, impl, r.loop)
}

// GetServiceInfo implements [Registrar].
func (r registrar) GetServiceInfo() map[string]grpc.ServiceInfo { return r.server.GetServiceInfo() }

// GetServiceInfo returns the registered services by name, those on loops
// included, for reflection.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.core.Info() }

// Serve serves the peers that arrive at lis until lis fails or the server is
// stopped. It closes lis, once. It returns nil after Stop or GracefulStop, and
// [grpc.ErrServerStopped] when it is called after them.
//
// lis comes from [Listen] or is any other: of package net, of tls.NewListener,
// handed over by systemd, a bufconn. Clients reach it with nearcall's own
// targets; other programs, ordinary gRPC clients among them, are answered in
// their own protocol with an error that says so.
func (s *Server) Serve(lis net.Listener) error {
	if lis == nil {
		return fmt.Errorf("nearcall: Serve needs a listener; get one from nearcall.Listen")
	}
	sessions, ok := lis.(link.Listener)
	if !ok {
		o := s.sockets
		if l, ok := lis.(socket); ok {
			o.RequireUpgrade = l.needsUpgrade
			o.NoUpgrade = o.NoUpgrade && !l.needsUpgrade
		}
		sessions = &sock.Listener{Listener: lis, Options: o}
		lis = sessions // whose Close ends handshakes, too
	}
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		_ = lis.Close()
		return grpc.ErrServerStopped
	}
	s.core.Start()
	open := &listening{lis}
	s.listeners[open] = struct{}{}
	s.serving.Add(1)
	s.mu.Unlock()
	defer s.serving.Done()

	err := sessions.Sessions(s.core.Accept)
	s.mu.Lock()
	_, mine := s.listeners[open]
	delete(s.listeners, open)
	stopped := s.stopped
	s.mu.Unlock()
	if errors.Is(err, link.ErrServed) {
		return fmt.Errorf("nearcall: cannot serve: %w", err) // and the other server goes on
	}
	if mine {
		_ = lis.Close()
	}
	if stopped {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("nearcall: the listener at %v was closed: %w", lis.Addr(), net.ErrClosed)
	}
	return err
}

// Stop closes all listeners and connections and cancels the calls that run:
// their callers get Unavailable. It does not wait for handlers to return
// unless [WaitForHandlers] says so. A caller whose own goroutine runs the handler
// gets Unavailable when the handler returns: see [ClientConn.Close].
func (s *Server) Stop() {
	s.closeListeners()
	s.core.Stop()
	s.serving.Wait()
}

// GracefulStop closes all listeners, refuses new calls and waits until the
// running ones have ended and their callers have what was sent to them. So a program
// may exit when it returns. A client in another process that takes nothing for 5
// seconds, after the last handler of its calls has returned, is not waited for any
// longer. Stop, called meanwhile, cuts that short: GracefulStop then waits for nothing
// but the handlers, whose contexts Stop cancels. A caller whose own goroutine runs
// the handler is released with it: see [ClientConn.Close].
func (s *Server) GracefulStop() {
	s.closeListeners()
	s.core.GracefulStop()
	s.serving.Wait()
}

func (s *Server) closeListeners() {
	s.mu.Lock()
	s.stopped = true
	open := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	for lis := range open {
		_ = lis.Close()
	}
}

// Client returns a connection to the server within the process. It needs no
// name and no Serve. Options that concern connecting or the network have
// nothing to do. Close it when it is no longer needed; after the server was
// stopped its calls return Unavailable.
func (s *Server) Client(opts ...DialOption) *ClientConn {
	o := newDialOptions(opts)
	switch {
	case o.err != nil:
		o.dialer = connector.Failing{Err: o.err}
	case o.dialer == nil:
		o.dialer = serverDialer{s, o.inproc()}
	}
	return newClientConn("inproc:", "localhost", nearBackoff, o)
}

// serverDialer dials a server that the program has at hand.
type serverDialer struct {
	server *Server
	opts   inproc.Options
}

// Dial implements [link.Dialer].
func (d serverDialer) Dial(context.Context) (link.Session, error) {
	return inproc.Connect("localhost", d.opts, d.server.core.Accept)
}
