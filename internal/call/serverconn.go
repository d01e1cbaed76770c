package call

import (
	"context"
	"sync"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
)

// A serverConn is a server's part of one session. It is the session's
// [link.Acceptor], and knows the calls that run.
type serverConn struct {
	server  *Server
	session link.Session
	peer    *link.Peer
	ctx     context.Context // what stats handlers attached to the connection

	quota *quota // nil without a limit

	mu       sync.Mutex
	running  *serverCall // the calls that run, linked by next and prev
	refusal  error       // why no call is taken any more
	closed   bool
	idle     chan struct{} // closed once no call is taken and none runs
	isIdle   bool
	ended    chan struct{} // closed once Closed was called
	peerOnce sync.Once
	peerInfo peer.Peer
}

func newServerConn(s *Server, session link.Session) *serverConn {
	c := &serverConn{
		server:  s,
		session: session,
		peer:    session.Peer(),
		ctx:     context.Background(),
		idle:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if n := s.cfg.MaxStreams; n > 0 && c.peer.Local {
		c.quota = &quota{free: n}
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

// add notes that call runs, or says why it must not.
func (c *serverConn) add(call *serverCall) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil {
		return c.refusal
	}
	if call.next = c.running; call.next != nil {
		call.next.prev = call
	}
	c.running = call
	return nil
}

func (c *serverConn) remove(call *serverCall) {
	c.mu.Lock()
	if call.prev != nil {
		call.prev.next = call.next
	} else {
		c.running = call.next
	}
	if call.next != nil {
		call.next.prev = call.prev
	}
	call.next, call.prev = nil, nil
	c.settle()
	c.mu.Unlock()
	c.giveQuota()
}

func (c *serverConn) giveQuota() {
	if c.quota != nil {
		c.quota.give()
	}
}

// settle closes idle once it is true, and has the server forget a connection
// that is over: closed, and without a handler that runs. mu is held.
func (c *serverConn) settle() {
	if c.refusal == nil || c.running != nil {
		return
	}
	if !c.isIdle {
		c.isIdle = true
		close(c.idle)
	}
	if c.closed {
		c.server.forget(c)
	}
}

// drain takes no more calls.
func (c *serverConn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal == nil {
		c.refusal = refused("the server is stopping and takes no new calls")
	}
	c.settle()
}

// Call implements [link.Acceptor].
func (c *serverConn) Call(call *link.Call, inline bool) error {
	m, st := c.server.lookup(call.Method)
	if st != nil || m.unary == nil {
		c.giveQuota()
		return link.ErrNoCall
	}
	sc, ok := call.Room.(*serverCall)
	if !ok {
		sc = new(serverCall)
	}
	sc.init(c, m, &call.Open)
	sc.unary = call
	caller := call.Caller()
	switch c.server.cfg.Placement {
	case OnWorkers:
		inline = false
	case Auto:
		inline = inline && caller != nil && caller.Done() == nil
	}
	if inline {
		sc.caller = caller
	}
	if caller == nil {
		sc.startTimer()
	}
	call.SetCallee(sc)
	if err := c.add(sc); err != nil {
		c.giveQuota()
		return err
	}
	if inline {
		sc.run()
	} else {
		c.server.workers.run(sc)
	}
	return nil
}

// Accept implements [link.Acceptor].
func (c *serverConn) Accept(s link.Stream, o *link.Open) error {
	m, st := c.server.lookup(o.Method)
	sc := new(serverCall)
	sc.init(c, m, o)
	sc.refusal = st
	sc.stream = s
	if err := c.add(sc); err != nil {
		c.giveQuota()
		return err
	}
	s.OnAbort(sc.Aborted)
	if !c.peer.Local {
		sc.startTimer()
	}
	c.server.workers.run(sc)
	return nil
}

// Closed implements [link.Acceptor].
func (c *serverConn) Closed(reason error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	if c.refusal == nil {
		c.refusal = unprocessed{reason}
	}
	var running []*serverCall
	for call := c.running; call != nil; call = call.next {
		running = append(running, call)
	}
	c.settle()
	c.mu.Unlock()
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
