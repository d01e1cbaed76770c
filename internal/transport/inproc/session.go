package inproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
)

// defaultWindow is the initial flow-control window of a gRPC stream, in bytes, and the
// smallest that gRPC allows.
const defaultWindow = 64 << 10

// A session joins a client and a server of one process. Each uses its own end of it.
type session struct {
	parkers wait.Pool
	up      direction // calls of the client
	down    direction // calls of the server
	client  end
	server  end
	ended   chan struct{} // closed by Close
	retired atomic.Bool   // the session ends when no call is left

	mu     sync.Mutex
	reason error // that Close was called with; set before ended is closed
}

// A direction is the state of the calls in one direction. acceptor and terms are set
// once, before the first call; acceptor is nil if the callee takes no calls.
type direction struct {
	acceptor link.Acceptor
	unary    UnaryAcceptor // the acceptor; nil if unary calls are made as streams
	terms    link.Terms
	window   int           // how far the callee may send ahead of the caller on a stream, in bytes
	calls    atomic.Int64  // that run
	done     chan struct{} // closed when no more calls are made, under the session's mu
}

// An end is one side's end of the session. It implements [link.Session].
type end struct {
	session *session
	out, in *direction
	peer    link.Peer
	counted counters.Session
}

// A UnaryAcceptor is a [link.Acceptor] that takes unary calls whole. Others get them as streams.
type UnaryAcceptor interface {
	link.Acceptor

	// NewCall returns a new call whose Shared is its [Callee], which may be allocated together with it.
	NewCall() *Call

	// HandleUnary is called for each unary call, which NewCall has made. It may run the handler on
	// the calling goroutine, before it returns. If the caller must use
	// NewStream, HandleUnary does nothing and returns link.ErrNoCall.
	HandleUnary(c *Call) error
}

// Options set up a session.
type Options struct {
	Config *options.Connections // of the client

	// Accept returns the acceptor of the server's calls, or nil for none. A nil Accept means none,
	// too.
	Accept func(link.Session) link.Acceptor

	// Client and Server are the peers that the client and the server see if the session replaces a
	// connection; nil otherwise.
	Client, Server *link.Peer
}

var (
	errStopped    = errors.New("the server is stopped")
	errClientLeft = errors.New("the client has closed the connection")
	errRetired    = errors.New("the connection is retired")
)

// Connect opens a session with the server behind accept, and returns the client's end.
func Connect(name string, o Options, accept func(link.Session) link.Acceptor) (link.Session, error) {
	s := &session{ended: make(chan struct{})}
	s.up = direction{window: o.Config.LocalWindow, done: make(chan struct{})}
	s.down = direction{window: o.Config.LocalWindow, done: make(chan struct{})}
	peer := link.Peer{Addr: Addr(name), LocalAddr: Addr(name), AuthInfo: link.Private}
	s.client = end{session: s, out: &s.up, in: &s.down, peer: *cmp.Or(o.Client, &peer)}
	s.server = end{session: s, out: &s.down, in: &s.up, peer: *cmp.Or(o.Server, &peer)}
	for _, e := range []*end{&s.client, &s.server} {
		e.peer.OneShot, e.peer.Local, e.peer.Path = true, true, counters.InProcess
		e.peer.NewCall = nil // that of a replaced connection
	}
	a := accept(&s.server)
	if a == nil {
		return nil, errStopped
	}
	s.mu.Lock()
	s.up.acceptLocked(a, &s.client.peer)
	s.mu.Unlock()
	if o.Accept != nil {
		if b := o.Accept(&s.client); b != nil {
			s.mu.Lock()
			s.down.acceptLocked(b, &s.server.peer)
			s.mu.Unlock()
		}
	}
	s.client.counted.Begin(true, counters.InProcess)
	s.server.counted.Begin(false, counters.InProcess)
	if link.IsClosed(s.ended) { // the server closed the session before both acceptors were set
		s.reportEnd(s.reason, s.reason)
	}
	return &s.client, nil
}

// acceptLocked sets d's acceptor and its terms.
func (d *direction) acceptLocked(a link.Acceptor, callee *link.Peer) {
	d.acceptor, d.terms = a, a.Terms()
	callee.Shares, callee.SharesBytes = d.terms.Share, d.terms.ShareBytes
	if u, ok := a.(UnaryAcceptor); ok {
		d.unary = u
		callee.NewCall = func() *link.UnaryCall { return &u.NewCall().UnaryCall }
	}
}

// stopLocked makes d take no more calls.
func (d *direction) stopLocked() {
	if !link.IsClosed(d.done) {
		close(d.done)
	}
}

// reportEnd reports the end of the session to its acceptors: up is the reason for calls of the
// client, down for calls of the server.
func (s *session) reportEnd(up, down error) {
	s.mu.Lock()
	acceptors := [2]link.Acceptor{s.up.acceptor, s.down.acceptor}
	s.mu.Unlock()
	for i, reason := range [2]error{up, down} {
		if a := acceptors[i]; a != nil {
			a.Closed(reason)
			a.Gone() // frames that were sent are already in the peer's queues
		}
	}
}

// end is called when a call has ended.
func (d *direction) end(s *session) {
	if d.calls.Add(-1) == 0 && s.retired.Load() {
		s.endIfIdle()
	}
}

// endIfIdle ends a retired session that has no calls.
func (s *session) endIfIdle() {
	if s.up.calls.Load() == 0 && s.down.calls.Load() == 0 {
		_ = s.client.Close(errRetired)
	}
}

var errOneWay = fmt.Errorf("inproc: %w", link.ErrOneWay)

// begin waits until a call may begin.
func (e *end) begin(ctx context.Context) error {
	if e.out.acceptor == nil {
		return errOneWay
	}
	if admit := e.out.terms.Admit; admit != nil {
		return admit(ctx)
	}
	return nil
}

func (e *end) Invoke(ctx context.Context, u *link.UnaryCall) error {
	callee, ok := u.Shared.(Callee)
	switch {
	case ok:
	case e.out.acceptor == nil:
		return errOneWay
	default:
		return link.ErrNoCall
	}
	if err := e.begin(ctx); err != nil {
		return err
	}
	e.out.calls.Add(1)
	defer e.out.end(e.session)
	c := callee.Call()
	c.Caller = ctx
	if err := e.out.unary.HandleUnary(c); err != nil {
		return err
	}
	return c.Wait(&e.session.parkers)
}

func (e *end) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	o.Caller = ctx
	p := newPipe(e.out.terms.Window, e.out.window)
	p.deadline, p.session, p.direction = o.Deadline, e.session, e.out
	e.out.calls.Add(1)
	if err := e.out.acceptor.HandleStream(&p.callee, o); err != nil {
		e.out.end(e.session)
		return nil, err
	}
	return &p.caller, nil
}

// Drain implements [link.Session]. Within a process no call is ever on its way, so Drain need not
// wait.
func (e *end) Drain() <-chan struct{} {
	e.session.mu.Lock()
	defer e.session.mu.Unlock()
	e.in.stopLocked()
	return e.in.done
}

func (e *end) Retire() {
	e.stop()
	e.session.retired.Store(true)
	e.session.endIfIdle()
}

// stop ends the making of calls.
func (e *end) stop() {
	e.session.mu.Lock()
	defer e.session.mu.Unlock()
	e.out.stopLocked()
	e.in.stopLocked()
}

var always = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Written implements [link.Session]. Its channel is always closed, because frames that were sent
// are already in the peer's queues.
func (e *end) Written() <-chan struct{} { return always }

func (e *end) Close(reason error) error {
	e.stop()
	s := e.session
	s.mu.Lock()
	first := !link.IsClosed(s.ended)
	if first {
		s.reason = reason
		s.client.counted.End()
		s.server.counted.End()
		close(s.ended)
	}
	s.mu.Unlock()
	switch {
	case !first:
	case e == &s.client:
		s.reportEnd(reason, errClientLeft) // reason may be a status, which only the client's own calls get
	default:
		s.reportEnd(reason, reason)
	}
	return nil
}

func (e *end) Done() <-chan struct{}  { return e.out.done }
func (e *end) Ended() <-chan struct{} { return e.session.ended }
func (e *end) Peer() *link.Peer       { return &e.peer }
