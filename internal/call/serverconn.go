package call

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A serverConn is a server's part of one session. It is the session's
// [link.Acceptor], and knows the calls that run.
type serverConn struct {
	server  *Server
	session link.Session
	peer    *link.Peer
	ctx     context.Context // what stats handlers attached to the connection

	quota *quota // nil without a limit
	most  uint64 // handlers that may run at a time; 0 for any number

	// Guarded by server.workers.mu.
	running []*serverCall // the calls that run, each at its index
	refusal error         // why no call is taken any more
	closed  bool
	isIdle  bool
	isGone  bool

	idle  chan struct{} // closed once no call is taken and none runs
	ended chan struct{} // closed once Closed was called
	gone  chan struct{} // closed once Gone was called

	peerOnce sync.Once
	peerInfo peer.Peer
}

// leastSpare is how many handlers may run beyond a connection's limit of calls,
// where that is low: a few that are about to return must not turn a call away.
const leastSpare = 64

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
	switch n := s.cfg.MaxStreams; {
	case n == 0:
	case c.peer.Local:
		c.quota = &quota{free: n}
	default:
		// The session counts the calls that are open, and a peer may open one
		// after the other and reset each at once, while their handlers run on.
		// A handler outlives its call by as long as it takes to see that its
		// context has ended, or to return once the end was sent. For that there
		// is as much room again: only a peer that gives up calls faster than
		// their handlers notice finds none.
		c.most = uint64(n) + max(uint64(n), leastSpare)
	}
	return c
}

// begin tells stats handlers of the connection. It precedes the first call.
func (c *serverConn) begin() {
	if h := c.server.stats; h != nil {
		c.ctx = h.TagConn(c.ctx, &stats.ConnTagInfo{RemoteAddr: c.peer.Addr, LocalAddr: c.peer.LocalAddr})
		h.HandleConn(c.ctx, &stats.ConnBegin{})
	}
}

// add notes that call runs, or says why it must not. workers.mu is held.
func (c *serverConn) add(call *serverCall) error {
	if c.refusal != nil {
		return c.refusal
	}
	if c.most > 0 && uint64(len(c.running)) >= c.most {
		return refused("too many calls of this connection were given up whose handlers still run: there are %d handlers, and no more than %d calls may be open at a time", len(c.running), c.server.cfg.MaxStreams)
	}
	call.index = int32(len(c.running))
	c.running = append(c.running, call)
	return nil
}

// remove notes that call runs no more. workers.mu is held.
func (c *serverConn) remove(call *serverCall) {
	last := len(c.running) - 1
	c.running[call.index] = c.running[last]
	c.running[call.index].index = call.index
	c.running[last] = nil
	c.running = c.running[:last]
	if c.refusal != nil {
		c.settle()
	}
}

func (c *serverConn) giveQuota() {
	if c.quota != nil {
		c.quota.give()
	}
}

// settle closes idle once it is true. The server forgets a connection of which
// nothing is left: no handler that runs, and no session. workers.mu is held.
func (c *serverConn) settle() {
	if c.refusal == nil || len(c.running) > 0 {
		return
	}
	if !c.isIdle {
		c.isIdle = true
		close(c.idle)
	}
	if c.isGone {
		c.server.forget(c)
	}
}

// drain takes no more calls.
func (c *serverConn) drain() {
	mu := &c.server.workers.mu
	mu.Lock()
	defer mu.Unlock()
	if c.refusal == nil {
		c.refusal = refused("the server is stopping and takes no new calls")
	}
	c.settle()
}

// Call implements [link.Acceptor].
func (c *serverConn) Call(call *link.Call, inline bool) error {
	m := c.server.lookup(call.Method)
	if m.unary == nil {
		c.giveQuota()
		return link.ErrNoCall
	}
	sc, ok := call.Callee().(*serverCall)
	if !ok {
		sc = new(serverCall)
	}
	sc.init(c, m, &call.Open)
	if err := sc.checkHead(); err != nil {
		c.giveQuota()
		return err
	}
	sc.unary = call
	caller := call.Caller
	switch c.server.cfg.Placement {
	case OnWorkers:
		inline = false
	case Auto:
		// Nor where handlers are labelled: a caller's goroutine may have labels that
		// its context does not know, and these would be lost.
		inline = inline && caller != nil && caller.Done() == nil && !c.server.labels
	}
	if caller != nil && wait.TaskOf(caller) != nil {
		inline = false // it waits as a task, and lets others run
	} else if caller != nil && m.loop != nil && m.loop.Inside() {
		inline = true // or it would wait for itself
	}
	sc.inline = caller != nil && (inline || m.hands)
	if caller == nil {
		sc.startTimer()
	}
	call.SetCallee(sc)
	run := c.server.workers.start
	if inline {
		run = c.server.workers.runHere
	}
	if err := run(sc); err != nil {
		sc.cancel(context.Canceled)
		c.giveQuota()
		return err
	}
	return nil
}

// Accept implements [link.Acceptor].
func (c *serverConn) Accept(s link.Stream, o *link.Open) error {
	ss := &serverStream{carrier: s}
	sc := &ss.call
	sc.init(c, c.server.lookup(o.Method), o)
	if err := sc.checkHead(); err != nil {
		c.giveQuota()
		s.Abort(err) // and not a refusal: as over HTTP/2, the caller has a stream, which fails
		return nil
	}
	sc.stream = ss
	if ss.codec = sc.method.codec; ss.codec == nil {
		ss.codec = sc.codec()
	}
	s.OnAbort(sc.Aborted)
	sc.inline = o.Caller != nil && sc.method.hands
	if !c.peer.Local {
		sc.startTimer()
	}
	if err := c.server.workers.start(sc); err != nil {
		sc.cancel(context.Canceled)
		c.giveQuota()
		return err
	}
	return nil
}

// Closed implements [link.Acceptor].
func (c *serverConn) Closed(reason error) {
	mu := &c.server.workers.mu
	mu.Lock()
	if c.closed {
		mu.Unlock()
		return
	}
	c.closed = true
	if c.refusal == nil {
		c.refusal = unprocessed{reason}
	}
	running := slices.Clone(c.running)
	c.settle()
	mu.Unlock()
	if c.quota != nil {
		c.quota.close(unprocessed{reason})
	}
	for _, call := range running {
		call.abort(reason)
	}
	if h := c.server.stats; h != nil {
		h.HandleConn(c.ctx, &stats.ConnEnd{})
	}
	close(c.ended)
}

// Gone implements [link.Acceptor].
func (c *serverConn) Gone() {
	mu := &c.server.workers.mu
	mu.Lock()
	defer mu.Unlock()
	c.isGone = true
	close(c.gone)
	c.settle()
}

// Terms implements [link.Acceptor].
func (c *serverConn) Terms() link.Terms {
	t := link.Terms{Window: c.server.cfg.Window, Share: c.server.shares()}
	if c.quota != nil {
		t.Admit = c.quota.take
	}
	return t
}

// peerOf returns the peer as handlers see it.
func (c *serverConn) peerOf() *peer.Peer {
	c.peerOnce.Do(func() {
		c.peerInfo = peer.Peer{Addr: c.peer.Addr, LocalAddr: c.peer.LocalAddr, AuthInfo: c.peer.AuthInfo}
	})
	return &c.peerInfo
}
