package server

import (
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/inproc"
)

// A serverConn is the server's side of one session: its [link.Acceptor].
type serverConn struct {
	server  *Server
	session link.Session
	peer    *link.Peer
	ctx     context.Context // tagged by stats handlers
	begin   sync.Once       // reports the connection to stats handlers

	admission admission

	callsMu     sync.Mutex
	calls       grpc.ClientConnInterface // for calls to the peer; nil before the first
	callsClosed bool

	// Guarded by the scheduler's mu.
	closed bool

	idle  chan struct{} // closed by admission's onIdle
	ended chan struct{} // closed once Closed was called
	gone  chan struct{} // closed once Gone was called

	peerInfo peer.Peer // for handlers
}

func newServerConn(s *Server, session link.Session) *serverConn {
	c := &serverConn{
		server:  s,
		session: session,
		peer:    session.Peer(),
		ctx:     context.Background(),
		idle:    make(chan struct{}),
		ended:   make(chan struct{}),
		gone:    make(chan struct{}),
	}
	c.peerInfo = peer.Peer{Addr: c.peer.Addr, LocalAddr: c.peer.LocalAddr, AuthInfo: c.peer.AuthInfo}
	a := &c.admission
	a.mu, a.onIdle = &s.scheduler.mu, c.idleLocked
	limit := s.opts.HandlerLimit(c.peer.Local)
	a.limit, a.ahead = int(min(limit, math.MaxInt32)), c.peer.Local && limit > 0
	return c
}

// reportBegin reports the connection to stats handlers, once. It is called before the first call.
func (c *serverConn) reportBegin() {
	if h := c.server.stats; h != nil {
		c.begin.Do(func() {
			c.ctx = h.TagConn(c.ctx, &stats.ConnTagInfo{RemoteAddr: c.peer.Addr, LocalAddr: c.peer.LocalAddr})
			h.HandleConn(c.ctx, &stats.ConnBegin{})
		})
	}
}

// reportEnd reports the end of the connection to stats handlers, if they were told of its
// beginning. If they were not, reportEnd makes sure that they never will be.
func (c *serverConn) reportEnd() {
	h, begun := c.server.stats, true
	if h == nil {
		return
	}
	if c.peer.Undecided { // other connections have begun; Do would deadlock if a ConnBegin handler closed one
		c.begin.Do(func() { begun = false })
	}
	if begun {
		h.HandleConn(c.ctx, &stats.ConnEnd{})
	}
}

// idleLocked is admission's onIdle. If Gone was called as well, the server forgets the
// connection.
func (c *serverConn) idleLocked() {
	close(c.idle)
	if link.IsClosed(c.gone) {
		c.server.forget(c)
	}
}

// drain makes the connection refuse new calls.
func (c *serverConn) drain() {
	mu := &c.server.scheduler.mu
	mu.Lock()
	defer mu.Unlock()
	c.admission.refuseLocked(refused("the server is stopping and takes no new calls"))
}

// NewCall implements [inproc.UnaryAcceptor].
func (c *serverConn) NewCall() *inproc.Call {
	both := new(struct {
		inproc.Call
		callee serverCall
	})
	both.Shared, both.callee.unary = &both.callee, &both.Call
	return &both.Call
}

// HandleUnary implements [inproc.UnaryAcceptor].
func (c *serverConn) HandleUnary(u *inproc.Call) error {
	m := c.server.lookup(u.Method)
	if m.unary == nil {
		c.admission.giveBackAhead()
		return link.ErrNoCall
	}
	sc := u.Shared.(*serverCall) // from NewCall
	sc.init(c, m, &u.CallHeader)
	if err := sc.checkHead(); err != nil {
		c.admission.giveBackAhead()
		return err
	}
	onCaller := c.server.scheduler.onCaller(m, u.Caller)
	sc.inline = onCaller || m.runsOnCaller
	return c.server.scheduler.start(sc, onCaller)
}

// HandleStream implements [link.Acceptor].
func (c *serverConn) HandleStream(s link.Stream, o *link.CallHeader) error {
	c.reportBegin()
	r := newCarried(s, c, c.server.lookup(o.Method), o)
	sc := &r.call
	if err := sc.checkHead(); err != nil {
		c.admission.giveBackAhead()
		s.Abort(err) // no refusal: as over HTTP/2, the caller gets a stream, which fails
		return nil
	}
	s.OnAbort(sc.Aborted)
	sc.inline = o.Caller != nil && sc.method.runsOnCaller
	if !c.peer.Local {
		sc.startTimer()
	}
	return c.server.scheduler.start(sc, false)
}

func (c *serverConn) Closed(reason error) {
	mu := &c.server.scheduler.mu
	mu.Lock()
	if c.closed {
		mu.Unlock()
		return
	}
	c.closed = true
	running := slices.Clone(c.admission.running)
	c.admission.refuseLocked(link.Unprocessed{Err: reason})
	mu.Unlock()
	for _, sc := range running {
		sc.abort(reason)
	}
	c.closePeerConn()
	c.reportEnd()
	close(c.ended)
}

func (c *serverConn) Gone() {
	mu := &c.server.scheduler.mu
	mu.Lock()
	defer mu.Unlock()
	if !link.IsClosed(c.gone) {
		close(c.gone)
	}
	if c.admission.isIdle {
		c.server.forget(c)
	}
}

// Idle is closed when the connection refuses new calls and no handler of its calls runs.
func (c *serverConn) Idle() <-chan struct{} { return c.idle }

func (c *serverConn) Terms() link.Terms {
	t := link.Terms{Window: c.server.opts.LocalWindow, Share: c.server.shares(), ShareBytes: c.server.opts.ServerImmutable}
	if c.admission.ahead {
		t.Admit = c.admission.admit
	}
	return t
}

// HandlerSession returns the session over which the call of a handler's context came, or nil for
// another context.
func HandlerSession(ctx context.Context) link.Session {
	if c, ok := ctx.Value(connKey{}).(*serverConn); ok {
		return c.session
	}
	return nil
}

// Calls in both directions. A client may have a Server, which accepts the client's end of
// a session as it accepts the sessions of listeners. A handler on either side gets a
// connection for calls to the peer from its context.

type connKey struct{}

// PeerConn returns the connection for calls to the peer that made the call of ctx. It returns nil
// if ctx does not come from a nearcall server.
func PeerConn(ctx context.Context) grpc.ClientConnInterface {
	c, ok := ctx.Value(connKey{}).(*serverConn)
	if !ok {
		return nil
	}
	return c.peerConn()
}

// WebSocketRequest returns the request that opened the WebSocket over which the call of ctx came,
// or nil if there is none.
func WebSocketRequest(ctx context.Context) *http.Request {
	if c, ok := ctx.Value(connKey{}).(*serverConn); ok && c.peer.Request != nil {
		return c.peer.Request()
	}
	return nil
}

// peerConn returns the connection for calls to the peer, and makes it on first use.
func (c *serverConn) peerConn() grpc.ClientConnInterface {
	c.callsMu.Lock()
	if c.calls == nil {
		c.calls = c.server.cfg.PeerConn(c.session)
	}
	calls, closed := c.calls, c.callsClosed
	c.callsMu.Unlock()
	if closed {
		c.closePeerConn() // again: it might have been made just now
	}
	return calls
}

// closePeerConn makes later calls to the peer fail. It must be called without callsMu: callbacks of
// calls that end may ask for the peer.
func (c *serverConn) closePeerConn() {
	c.callsMu.Lock()
	c.callsClosed = true
	calls := c.calls
	c.callsMu.Unlock()
	if conn, ok := calls.(io.Closer); ok {
		_ = conn.Close()
	}
}

// AcceptClient is Accept for the client's end of a session, whose peer calls s. Methods of s
// affect only these calls, not the session. counter counts them, and may be nil.
func (s *Server) AcceptClient(session link.Session, counter options.CallCounter) link.Acceptor {
	side := &clientSide{Session: session}
	side.conn = newServerConn(s, side)
	side.conn.admission.counter = counter
	if !s.addConn(side.conn) {
		return nil
	}
	return side.conn
}

// A clientSide is the client's end of a session for the client's Server.
type clientSide struct {
	link.Session
	conn    *serverConn
	closing sync.Once
}

// Close implements [link.Session]. It ends the peer's calls, and leaves the session to the client.
func (c *clientSide) Close(reason error) error {
	c.closing.Do(func() {
		c.Session.Drain()
		c.conn.Closed(reason)
		go func() {
			<-c.Session.Written()
			c.conn.Gone()
		}()
	})
	return nil
}
