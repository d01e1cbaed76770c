// Package grpcserver serves ordinary gRPC clients with a grpc.Server. It gets each connection after
// another package has accepted it, read its first bytes and done its security handshake.
package grpcserver

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// Config configures a Server.
type Config struct {
	Register func(grpc.ServiceRegistrar)   // registers the services
	Loop     func(method string) wait.Loop // runs the handlers of a method; nil for goroutines
	Options  *options.Server               // interceptors, and all that ForGRPC returns; GRPCOptions come last
	More     []grpc.ServerOption           // after those of ForGRPC

	// Stream is the outermost interceptor of streams.
	Stream grpc.StreamServerInterceptor

	// Tap is the tap handle for requests of ServeHTTP, because grpc-go asks none for them. It
	// returns the call's context, or the status of a refusal. It may be nil.
	Tap func(context.Context, *tap.Info) (context.Context, *status.Status)
}

// A Server serves the connections that Take gives it, and the requests that ServeHTTP gets. Its
// methods are safe for concurrent use.
type Server struct {
	config func() Config
	conns  *listener

	// Set with mu, while the server is not stopped.
	inner *grpc.Server   // of connections; nil before the first
	web   *grpc.Server   // of requests; nil before the first
	ended sync.WaitGroup // until inner serves no more

	mu        sync.Mutex
	settingUp map[*connection]struct{} // connections whose clients have not sent their settings to inner
	setups    sync.WaitGroup           // counts settingUp; none is added once stopped
	stopped   bool
	requests  map[*request]struct{} // that are being answered
	answering sync.WaitGroup        // calls of ServeHTTP; none is added once stopped
}

// New returns a server. It calls config when the first client has come.
func New(config func() Config) *Server {
	return &Server{
		config:    config,
		conns:     &listener{conns: make(chan net.Conn), closed: make(chan struct{})},
		settingUp: make(map[*connection]struct{}),
		requests:  make(map[*request]struct{}),
	}
}

// newServer returns a grpc.Server with the services and options of c. The options first precede c's.
func newServer(c Config, first ...grpc.ServerOption) *grpc.Server {
	loops := loops(c.Loop)
	s := grpc.NewServer(slices.Concat(first, []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(loops.unary), grpc.ChainUnaryInterceptor(c.Options.ServerUnaryChain...),
		grpc.ChainStreamInterceptor(loops.stream, c.Stream), grpc.ChainStreamInterceptor(c.Options.ServerStreamChain...),
	}, c.Options.ForGRPC(), c.More, c.Options.GRPCOptions, []grpc.ServerOption{grpc.Creds(alreadyDone{insecure.NewCredentials()})})...)
	c.Register(s)
	return s
}

// Take takes ownership of conn and serves it. first was already read from conn. auth is the
// result of its security handshake. The client must send its settings before the deadline.
func (s *Server) Take(conn net.Conn, first []byte, auth credentials.AuthInfo, deadline time.Time) {
	c := &connection{Conn: conn, server: s, first: first, auth: auth, deadline: deadline}
	if o, ok := conn.(interface{ OnRequest(f func()) }); ok { // another server may get it
		o.OnRequest(c.begin)
	} else {
		c.begin()
	}
	if !s.add(c) || !s.conns.put(c) {
		_ = c.Close()
	}
}

// add records that c is being set up. It reports false if the server was stopped.
func (s *Server) add(c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	if s.inner == nil {
		s.inner = newServer(s.config())
		s.ended.Go(func() { _ = s.inner.Serve(s.conns) })
	}
	s.settingUp[c] = struct{}{}
	s.setups.Add(1)
	return true
}

// removeLocked records that c is no longer being set up.
func (s *Server) removeLocked(c *connection) {
	if _, ok := s.settingUp[c]; ok {
		delete(s.settingUp, c)
		s.setups.Done()
	}
}

// settingsTimeout is how long GracefulStop waits for the settings of clients, which may have made
// calls already.
const settingsTimeout = time.Second

// abandon ends the connections that are being set up, at once or after settingsTimeout.
// Without this, grpc-go would wait for their clients when it stops.
func (s *Server) abandon(atOnce bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c := range s.settingUp {
		if atOnce {
			_ = c.Conn.Close()
		} else {
			c.deadline = time.Now().Add(settingsTimeout)
			_ = c.Conn.SetDeadline(c.deadline)
		}
	}
}

// GracefulStop refuses new connections and calls, and waits until all calls have ended.
// It returns early if Stop is called.
func (s *Server) GracefulStop() {
	s.abandon(false)
	s.setups.Wait() // grpc-go would close connections that it has accepted but not begun to set up
	if s.inner != nil {
		s.inner.GracefulStop()
	}
	s.ended.Wait()
	s.answering.Wait()
	s.stopWeb()
}

// Stop closes all connections, which cancels their calls. Clients of requests have some time to
// take the ends of their calls.
func (s *Server) Stop() {
	s.abandon(true)
	s.mu.Lock()
	for r := range s.requests { // none of them returns before mu is released
		_ = r.control.SetWriteDeadline(time.Now().Add(lingering))
	}
	s.mu.Unlock()
	s.stopWeb()
	if s.inner != nil {
		s.inner.Stop()
	}
	s.ended.Wait()
}

// stopWeb cancels the calls of ServeHTTP. The server was stopped.
func (s *Server) stopWeb() {
	if s.web != nil {
		s.web.Stop()
	}
}

// ServeHTTP answers a request of HTTP/2 from p, and returns after the handler has returned. It
// reports false if the server was stopped, and has not answered then. Requests have a grpc.Server
// to themselves, because GracefulStop of a grpc.Server cancels the calls of its ServeHTTP.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, p *link.Peer) bool {
	s.mu.Lock()
	stopped := s.stopped
	held := &request{control: http.NewResponseController(w)}
	if !stopped {
		s.requests[held] = struct{}{}
		s.answering.Add(1)
		if s.web == nil {
			c := s.config()
			s.web = newServer(c, grpc.StatsHandler(peers{c.Tap}), grpc.ChainUnaryInterceptor(holdUnary), grpc.ChainStreamInterceptor(holdStream))
		}
	}
	web := s.web
	s.mu.Unlock()
	if stopped {
		return false
	}
	defer s.forget(held)
	ctx := context.WithValue(context.WithValue(r.Context(), peerKey{}, p), requestKey{}, held)
	web.ServeHTTP(w, r.WithContext(ctx))
	held.end()
	if h := w.Header(); h.Get("Grpc-Status") == "" { // Stop has cancelled the call, or its client has left
		if h.Get("Content-Type") == "" {
			h.Set("Content-Type", "application/grpc")
		}
		h.Set("Grpc-Status", strconv.Itoa(int(codes.Unavailable)))
		h.Set("Grpc-Message", "the server was stopped")
	}
	return true
}

// forget is called when a request was answered.
func (s *Server) forget(r *request) {
	s.mu.Lock()
	delete(s.requests, r)
	s.mu.Unlock()
	s.answering.Done()
}

// A request is a call of ServeHTTP. grpc-go's ServeHTTP returns when the client has left, even if
// the handler runs on. Clients that open and reset calls could then run any number of handlers.
type request struct {
	control *http.ResponseController

	mu      sync.Mutex
	over    bool // no handler may start
	handler sync.WaitGroup
}

// lingering is how long the client of a call that Stop has cancelled may take to read what was sent.
// Without a limit, grpc-go's Stop would wait for a handler whose message waits for its client.
const lingering = time.Second

type requestKey struct{}

// begin reports whether the handler may start.
func (r *request) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.handler.Add(1)
	}
	return !r.over
}

// end waits for the handler.
func (r *request) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.handler.Wait()
}

var errLeft = status.Error(codes.Canceled, "the client has left")

// begun returns the request of ctx, whose handler can start, or why it cannot.
func begun(ctx context.Context) (*request, error) {
	if refusal, _ := ctx.Value(refusalKey{}).(*status.Status); refusal.Err() != nil { // the tap handle's
		return nil, refusal.Err()
	}
	r := ctx.Value(requestKey{}).(*request)
	if !r.begin() {
		return nil, errLeft
	}
	return r, nil
}

func holdUnary(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	r, err := begun(ctx)
	if err != nil {
		return nil, err
	}
	defer r.handler.Done()
	return handler(ctx, in)
}

func holdStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	r, err := begun(ss.Context())
	if err != nil {
		return err
	}
	defer r.handler.Done()
	return handler(srv, ss)
}

type peerKey struct{}

// peers gives the calls of requests the peer that ServeHTTP got, and its connection. grpc-go knows
// only the request's RemoteAddr and TLS. As the first stats handler it comes before all others. It
// also asks the tap handle, whose refusal the first interceptor returns. It implements
// [stats.Handler].
type peers struct {
	tap func(context.Context, *tap.Info) (context.Context, *status.Status)
}

type refusalKey struct{}

// A connected context also has the connection of the peer, which package authz asks for.
type connected struct {
	context.Context
	peer *link.Peer
}

// Value implements [context.Context].
func (c connected) Value(key any) any {
	if grpcinside.IsConnectionKey(key) {
		return link.Connection{Peer: c.peer}
	}
	return c.Context.Value(key)
}

func (peers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	p, ok := ctx.Value(peerKey{}).(*link.Peer)
	if !ok {
		return ctx
	}
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: p.Addr, LocalAddr: p.LocalAddr, AuthInfo: p.AuthInfo})
	return connected{ctx, p}
}

func (peers) HandleConn(context.Context, stats.ConnStats) {}

func (p peers) TagRPC(ctx context.Context, call *stats.RPCTagInfo) context.Context {
	ctx = p.TagConn(ctx, nil)
	if p.tap == nil {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx)
	tapped, refusal := p.tap(ctx, &tap.Info{FullMethodName: call.FullMethodName, Header: md})
	if refusal != nil {
		return context.WithValue(ctx, refusalKey{}, refusal)
	}
	return context.WithValue(tapped, requestKey{}, ctx.Value(requestKey{})) // tapped may be any context
}

func (peers) HandleRPC(context.Context, stats.RPCStats) {}

// A connection is a net.Conn from which the first bytes were already read.
type connection struct {
	net.Conn
	server   *Server
	first    []byte // the rest of these bytes, which grpc-go has not read yet
	auth     credentials.AuthInfo
	deadline time.Time // for the settings; guarded by server.mu
	counted  counters.Session
}

func (c *connection) begin() { c.counted.Begin(false, counters.GRPC) }

func (c *connection) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *connection) Close() error {
	c.server.mu.Lock()
	c.server.removeLocked(c)
	c.server.mu.Unlock()
	c.counted.End()
	return c.Conn.Close()
}

// SetDeadline implements [net.Conn]. grpc-go sets a deadline for the whole setup of a
// connection, part of which is done, so the earlier of the two deadlines applies. It unsets
// the deadline after the setup.
func (c *connection) SetDeadline(t time.Time) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.IsZero() {
		s.removeLocked(c)
	} else if c.deadline.Before(t) {
		t = c.deadline
	}
	return c.Conn.SetDeadline(t)
}

// alreadyDone are the credentials of connections whose security handshake is complete. A server
// uses nothing of them but ServerHandshake.
type alreadyDone struct {
	credentials.TransportCredentials
}

func (alreadyDone) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, conn.(*connection).auth, nil
}

// A listener accepts the connections that put gets. It implements [net.Listener].
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// put waits until conn was accepted. It returns false if the listener is closed.
func (l *listener) put(conn net.Conn) bool {
	select {
	case l.conns <- conn:
		return true
	case <-l.closed:
		return false
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (*listener) Addr() net.Addr {
	return &net.UnixAddr{Net: "nearcall", Name: "connections of ordinary gRPC clients"}
}
