package call

import (
	"container/list"
	"context"
	"errors"
	"math"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
)

// A serverConn is the server's side of one session: its [link.Acceptor]. It tracks the
// running calls.
type serverConn struct {
	server  *Server
	session link.Session
	peer    *link.Peer
	ctx     context.Context // tagged by stats handlers
	begin   sync.Once       // reports the connection to stats handlers

	quota       *quota // limits the calls of an in-process session; nil for no limit
	maxHandlers int    // limit of running handlers of any other session; 0 for none

	ofClient  bool        // the session is a client's, which makes calls over it as well
	counter   CallCounter // counts the calls, too; may be nil
	callsOnce sync.Once
	calls     grpc.ClientConnInterface // for calls to the peer; nil before the first

	// Guarded by server.workers.mu.
	running   []*serverCall // each at its index
	room      wait.Cond     // the session's reader waits here for a handler to return
	waiting   list.List     // of *waitingCall
	lent      int           // calls that wait to run on lent goroutines
	undecided int           // calls that wait, or have waited and neither run nor were refused yet
	callsPeer bool          // handlers may wait for calls to the peer, which its reader must read
	refusal   error         // why new calls are refused; nil if they are not
	closed    bool
	isIdle    bool
	isGone    bool

	idle  chan struct{} // closed once new calls are refused, and none runs or must still be refused
	ended chan struct{} // closed once Closed was called
	gone  chan struct{} // closed once Gone was called

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
		gone:    make(chan struct{}),
	}
	if !c.peer.Local {
		c.maxHandlers = int(min(s.cfg.MaxRemote, math.MaxInt32))
	} else if n := s.cfg.MaxStreams; n > 0 {
		c.quota = &quota{free: n}
	}
	return c
}

// reportBegin reports the connection to stats handlers, once. It is called before the first
// call.
func (c *serverConn) reportBegin() {
	if h := c.server.stats; h != nil {
		c.begin.Do(func() {
			c.ctx = h.TagConn(c.ctx, &stats.ConnTagInfo{RemoteAddr: c.peer.Addr, LocalAddr: c.peer.LocalAddr})
			h.HandleConn(c.ctx, &stats.ConnBegin{})
		})
	}
}

// reportEnd reports the end of the connection to stats handlers, unless they were not told of
// its beginning. They are not told later, either.
func (c *serverConn) reportEnd() {
	h, begun := c.server.stats, true
	if h == nil {
		return
	}
	if c.peer.Undecided { // others have begun; a handler of ConnBegin may close its connection
		c.begin.Do(func() { begun = false })
	}
	if begun {
		h.HandleConn(c.ctx, &stats.ConnEnd{})
	}
}

var errNoRoom = errors.New("call: as many handlers run as may")

// add adds call to the running ones, or returns why it must not run. workers.mu is held.
//
// A peer in another process may open calls and reset each at once, faster than their
// handlers return. The session limits only the open calls, so add limits the running
// handlers, to the same number. At the limit it blocks the session's reader, and with it
// the peer, until a handler returns. Handlers of reset calls do not wait for the peer, so
// the reader does not block forever, and grpc-go does the same. But handlers that call the
// peer may wait for what the reader reads, so then add returns errNoRoom. A client's
// handlers can do that at any time, and with any connection of the client. Calls that wait
// to run on the reader wait for it, too. And while calls wait for room on goroutines of their
// own, the reader does not wait beside them: only one goroutine can wait at c.room. A session
// that reads each call on its own goroutine never waits there.
func (c *serverConn) add(call *serverCall) error {
	for c.maxHandlers > 0 && len(c.running) >= c.maxHandlers && c.refusal == nil {
		if c.peer.Parallel || c.callsPeer || c.ofClient || c.lent > 0 || c.undecided > 0 {
			return errNoRoom
		}
		c.room.Wait(&c.server.workers.mu, nil)
	}
	if c.refusal != nil {
		return c.refusal
	}
	if c.counter != nil {
		c.counter.Begin()
	}
	call.index = int32(len(c.running))
	c.running = append(c.running, call)
	return nil
}

// remove removes call from the running ones. workers.mu is held.
func (c *serverConn) remove(call *serverCall) {
	if c.counter != nil {
		c.counter.End()
	}
	if len(c.running) == c.maxHandlers {
		wait.Unpark(c.room.Wake())
	}
	c.server.workers.watch.remove(call)
	last := len(c.running) - 1
	c.running[call.index] = c.running[last]
	c.running[call.index].index = call.index
	c.running[last] = nil
	c.running = c.running[:last]
	c.giveRoom()
	if c.refusal != nil {
		c.closeIfDrained()
	}
}

// refuse makes the connection refuse new calls for reason. workers.mu is held.
func (c *serverConn) refuse(reason error) {
	if c.refusal == nil {
		c.refusal = reason
		wait.Unpark(c.room.Wake())
		c.giveAllRoom()
	}
	c.closeIfDrained()
}

func (c *serverConn) releaseQuota() {
	if c.quota != nil {
		c.quota.release()
	}
}

// closeIfDrained closes idle if new calls are refused, and none runs or must still be
// refused. If the session is gone as well, the server forgets the connection. workers.mu is
// held.
func (c *serverConn) closeIfDrained() {
	if c.refusal == nil || len(c.running) > 0 || c.undecided > 0 {
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

// drain makes the connection refuse new calls.
func (c *serverConn) drain() {
	mu := &c.server.workers.mu
	mu.Lock()
	defer mu.Unlock()
	c.refuse(refused("the server is stopping and takes no new calls"))
}

// HandleUnary implements [link.Acceptor].
func (c *serverConn) HandleUnary(call *link.UnaryCall, inline bool) error {
	m := c.server.lookup(call.Method)
	if m.unary == nil {
		c.releaseQuota()
		return link.ErrNoCall
	}
	sc, ok := call.Callee().(*serverCall)
	if !ok {
		sc = new(serverCall)
	}
	sc.init(c, m, &call.CallHeader)
	if err := sc.checkHead(); err != nil {
		c.releaseQuota()
		return err
	}
	sc.unary = call
	caller := call.Caller
	inline = c.server.placementOf(m, caller, inline) == Inline
	sc.inline = caller != nil && (inline || m.runsOnCaller)
	if caller == nil {
		sc.startTimer()
	}
	call.SetCallee(sc)
	var err error
	if inline {
		err = c.server.workers.runOnCaller(sc)
	} else {
		err = c.server.workers.start(sc, nil)
	}
	if err != nil {
		sc.cancel(context.Canceled)
		c.releaseQuota()
		return err
	}
	return nil
}

// HandleStream implements [link.Acceptor].
func (c *serverConn) HandleStream(s link.Stream, o *link.CallHeader) error {
	c.reportBegin()
	r := newCarried(s, c, c.server.lookup(o.Method), o)
	sc := &r.call
	if err := sc.checkHead(); err != nil {
		c.releaseQuota()
		s.Abort(err) // and no refusal: as over HTTP/2, the caller gets a stream, which fails
		return nil
	}
	if r.codec = sc.method.codec; r.codec == nil {
		r.codec = sc.codec()
	}
	s.OnAbort(sc.Aborted)
	sc.inline = o.Caller != nil && sc.method.runsOnCaller
	if !c.peer.Local {
		sc.startTimer()
	}
	if err := c.server.workers.start(sc, sc.lender()); err != nil {
		sc.cancel(context.Canceled)
		c.releaseQuota()
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
	running, callsPeer := slices.Clone(c.running), c.callsPeer
	c.refuse(link.Unprocessed{Err: reason})
	mu.Unlock()
	if c.quota != nil {
		c.quota.close(link.Unprocessed{Err: reason})
	}
	for _, call := range running {
		call.abort(reason)
	}
	if callsPeer {
		c.closePeerConn()
	}
	c.reportEnd()
	close(c.ended)
}

// Gone implements [link.Acceptor].
func (c *serverConn) Gone() {
	mu := &c.server.workers.mu
	mu.Lock()
	defer mu.Unlock()
	if !c.isGone {
		c.isGone = true
		close(c.gone)
	}
	c.closeIfDrained()
}

// Terms implements [link.Acceptor].
func (c *serverConn) Terms() link.Terms {
	t := link.Terms{Window: c.server.cfg.Window, Share: c.server.shares(), ShareBytes: c.server.cfg.Shared}
	if c.quota != nil {
		t.Admit = c.quota.acquire
	}
	return t
}

// peerOf returns the peer for handlers.
func (c *serverConn) peerOf() *peer.Peer {
	c.peerOnce.Do(func() {
		c.peerInfo = peer.Peer{Addr: c.peer.Addr, LocalAddr: c.peer.LocalAddr, AuthInfo: c.peer.AuthInfo}
	})
	return &c.peerInfo
}
