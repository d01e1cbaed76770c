// Package mux carries the calls of docs/protocol.md over one connection of
// ordered bytes, as a [link.Session]. It knows neither where the bytes go nor
// what gRPC makes of a call.
//
// A call crosses no goroutine that it does not have to. Over a bare socket a
// caller that waits for its reply reads the connection itself, for all (see
// reading), and whoever has something to send writes it, and what others have
// (see writing). A goroutine of the session does either where that does not
// pay: where many wait, where the socket is full, over connections that are
// more than a socket. Whoever reads moves bytes only: it never decodes a
// message, runs a handler or waits for a call, so that no call holds up
// another.
package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// A Conn is what a session runs over. Closing it ends a Read and a Write that
// wait. net.Conn is one.
type Conn interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// A Prompt is a Conn that can be asked whether it is ready. One goroutine may read
// while another writes. Its Read can be cut short by a deadline in the past, and goes
// on afterwards.
type Prompt interface {
	// TryRead reads what is there: nothing, mostly, and then n is 0 without
	// an error.
	TryRead(b []byte) (n int, err error)

	// TryWrite writes what there is room for: of b or, unless it is nil, of
	// all.
	TryWrite(b []byte, all [][]byte) (n int, err error)
}

// A Placer is a Conn whose two ends see memory of one another's, where large
// messages are put instead of sent. All methods may be called by any goroutine.
type Placer interface {
	// Place returns where n bytes may be put, or a few more, and where the peer
	// finds them; false where there is no such place. Placed is called when they
	// are there, or will not be.
	Place(n int) (b []byte, at int, ok bool)
	Placed()

	// Hold keeps what the peer has put at at, n bytes, until Release is called, also
	// when the connection is closed. Its error is the peer's fault.
	Hold(at, n int) error

	// Check returns why no memory is worth to be spent on what is held: the peer has
	// spent less. Else Fetch reads b from it. That fails where the memory cannot be read,
	// or was not kept when the connection was closed.
	Check() error
	Fetch(b []byte, at int) error
	Release(at int)

	// Returned takes a place back that the peer is not told of, or has fetched
	// from. Its error is the peer's fault.
	Returned(at int) error
}

// promptOf returns conn's Prompt; nil for connections that have none.
func promptOf(conn Conn) Prompt {
	if p, ok := conn.(Prompt); ok {
		return p
	}
	if p := newSocket(conn); p != nil {
		return p
	}
	return nil
}

// DefaultHandshake is gRPC's ConnectionTimeout.
const DefaultHandshake = 120 * time.Second

// Options set a session up. The zero value of a field is its default.
type Options struct {
	Name   string // of the peer, for errors
	Client bool   // this side connected
	Peer   link.Peer

	Window         int           // of a call, in bytes: 64 KiB at least, which is the default
	MaxWindow      int           // to which that of a call grows where its receiver waits for more, in bytes; Window by default
	ConnWindow     int           // of all calls together, in bytes: 1 MiB by default
	MaxHeaderBytes int           // the largest header or trailer that is taken, as wire.HeadSize and its like count: 16 MiB by default
	MaxStreams     uint32        // that the peer may have open at a time; 0 for any number
	Handshake      time.Duration // in which the peer has to say hello: 120 s by default
	Farewell       time.Duration // for which a peer may take nothing after Close of what calls have left to say: 5 s by default

	Keepalive       keepalive.ClientParameters // of a client; without a Time no PING is sent
	ServerKeepalive keepalive.ServerParameters // of a server
	Enforcement     keepalive.EnforcementPolicy

	NoSpin bool   // readers wait in Read, without trying first
	First  []byte // what was read of conn already
}

func (o Options) withDefaults() Options {
	o.Window = max(o.Window, wire.MinWindow)
	o.ConnWindow = max(cmp.Or(o.ConnWindow, 1<<20), o.Window)
	o.MaxHeaderBytes = max(cmp.Or(o.MaxHeaderBytes, 16<<20), wire.MinBlock)
	o.Handshake = cmp.Or(o.Handshake, DefaultHandshake)
	o.Farewell = cmp.Or(o.Farewell, 5*time.Second)
	return o
}

// A Session is one side of a connection. One lock guards all of it and all of
// its streams; it is released before anything outside this package is called.
type Session struct {
	opts          Options
	conn          Conn
	placer        Placer         // nil where all messages go through the connection
	acceptor      link.Acceptor  // nil where the peer's calls are refused; set before anything is read
	helloReceived chan struct{}  // closed when the peer's HELLO has come
	done          chan struct{}  // closed when no new call is taken
	over          chan struct{}  // closed when all calls have ended
	gone          chan struct{}  // closed when nothing of the session runs any more
	telling       sync.WaitGroup // of whoever ends the session, and tells of it

	mu           sync.Mutex
	refusal      error // why no new call is made; nil while calls are
	ended        error // why the session has ended; nil while it has not
	drained      bool  // the peer was told that its calls are not taken
	peerDrained  bool  // the peer has sent DRAIN
	started      bool
	bell         *time.Timer // closes the connection after Close, if the peer does not
	hello        wire.Hello  // the peer's, or what holds until it has come
	streams      map[uint64]*stream
	recent       *stream // one of them, which was spoken of last, and mostly is next; nil for none
	quiet        quiet
	live         streamList // those in streams and those not yet opened
	streamsBegun uint64     // how many there have been
	lastOwn      uint64     // the number that was given last
	last         uint64     // the number that the peer gave last
	calls        uint32     // that the peer has open
	answered     bool       // the peer has sent something of a call
	connIn       int        // what the peer may still send
	taken        int        // credit of the connection to give back
	rash         int        // how many more calls of its own the peer has given up, of late, than have ended
	unread       int        // what all streams have unread, in credit
	closing      bool       // it ends, as the last call is over and none is taken
	keepalive    keepaliveState
	parkers      wait.Pool
	admission    admission
	reading
	writing
}

// New returns a session over conn, which it owns from now on. Nothing happens
// before Start.
func New(conn Conn, o Options) *Session {
	o = o.withDefaults()
	o.Peer.OneShot = o.Client
	s := &Session{
		opts:          o,
		conn:          conn,
		helloReceived: make(chan struct{}),
		done:          make(chan struct{}),
		over:          make(chan struct{}),
		gone:          make(chan struct{}),
		hello:         wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock},
		streams:       make(map[uint64]*stream),
		connIn:        o.ConnWindow,
	}
	s.raw = promptOf(conn)
	s.placer, _ = conn.(Placer)
	s.dec.Places, s.dec.Block = s.placer != nil, o.MaxHeaderBytes
	s.spinBudget.earned = maxEarned
	s.connOut = s.hello.Connection
	return s
}

// greeting returns what this side begins with.
func (s *Session) greeting(acceptor link.Acceptor) []byte {
	o := &s.opts
	hello := wire.Hello{Version: wire.Version, Stream: int64(o.Window), Connection: int64(o.ConnWindow), Calls: uint64(o.MaxStreams), Block: o.MaxHeaderBytes}
	if !o.Client {
		hello.Ping, hello.IdlePing = millis(minPings(&o.Enforcement, false)), millis(minPings(&o.Enforcement, true))
	}
	if acceptor == nil {
		hello.Features |= wire.FeatureNoCalls
	}
	return wire.AppendHello([]byte(wire.Magic), &hello)
}

// Start sets the session going. acceptor is told of the peer's calls; they are
// refused where it is nil.
func (s *Session) Start(acceptor link.Acceptor) {
	s.mu.Lock()
	s.acceptor = acceptor
	s.started = true
	s.control = append(s.greeting(acceptor), s.control...)
	s.occupied = true
	s.wakeWriter() // to say hello
	s.startKeepalive()
	s.closeIfDrained()
	ended := s.ended
	s.mu.Unlock()
	if ended != nil && acceptor != nil {
		acceptor.Closed(ended) // it was closed before anybody knew
	}
	var both sync.WaitGroup
	both.Go(s.writeLoop)
	both.Go(s.readLoop)
	go func() {
		both.Wait()
		s.telling.Wait()
		_ = s.conn.Close()
		s.mu.Lock()
		if s.bell != nil {
			s.bell.Stop()
		}
		s.stopReadIdle()
		s.stopKeepalive()
		s.mu.Unlock()
		close(s.gone)
		if acceptor != nil {
			acceptor.Gone()
		}
	}()
}

// Meet waits for the peer's HELLO. It returns why there is none; a peer that has said
// hello and left was met.
func (s *Session) Meet(ctx context.Context) error {
	select {
	case <-s.helloReceived:
		return nil
	case <-s.over:
		if link.IsClosed(s.helloReceived) {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ended
	case <-ctx.Done():
		return fmt.Errorf("%s: the peer has not said hello: %w", s.opts.Name, ctx.Err())
	}
}

// NewStream implements [link.Session]. It waits for the peer only where that has as
// many calls as it takes.
func (s *Session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st := new(stream)
	s.mu.Lock()
	err := s.open(ctx, st, o)
	if err == nil {
		st.enqueue(wire.Step{Open: o}, nil)
		s.wakeWriter() // what is sent next mostly comes before it
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return st, nil
}

// open begins a call of this side's. mu is held.
func (s *Session) open(ctx context.Context, st *stream, o *link.CallHeader) error {
	if n := wire.HeadSize(o); n > s.hello.Block {
		return tooLong("request header", n, s.hello.Block)
	}
	if err := s.admit(ctx); err != nil {
		return err
	}
	st.caller = true
	s.initStream(st, 0, o.Encoding)
	return nil
}

// Drain implements [link.Session].
func (s *Session) Drain() {
	s.mu.Lock()
	s.drain(errors.New("the server is going away"))
	s.flush(false)
}

// drain takes no more calls, and says so. mu is held.
func (s *Session) drain(reason error) {
	s.refuse(reason)
	if !s.drained {
		s.drained = true
		s.control = wire.AppendDrain(s.control, s.last)
	}
	s.closeIfDrained()
}

// refuse makes no more calls. mu is held.
func (s *Session) refuse(reason error) {
	if s.refusal != nil {
		return
	}
	s.refusal = reason
	close(s.done)
	s.refuseQueued()
}

// Done implements [link.Session].
func (s *Session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *Session) Ended() <-chan struct{} { return s.over }

// Gone is closed when the connection is closed and nothing of the session runs
// any more.
func (s *Session) Gone() <-chan struct{} { return s.gone }

// Outcome reports whether the peer has sent something of a call that this side
// had opened, or a further step of one of its own, and why no new call is taken.
func (s *Session) Outcome() (answered bool, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered, s.refusal
}

// Peer implements [link.Session].
func (s *Session) Peer() *link.Peer { return &s.opts.Peer }

// Farewells.
//
// A session that ends writes what calls that have ended left to be written, then
// BYE, and then nothing. A peer that reads BYE closes the connection. Only then is
// it closed here: a connection that is closed with bytes unread, some of a call's
// that the peer was making, may be reset, and a reset throws away what the peer
// has not read yet. So when the session is gone the peer has read everything. If it
// takes nothing for as long as Options.Farewell says, the connection is closed at
// once: of what was written it may still read what the system kept for it, which
// for shared memory is all of it.

// Close implements [link.Session]. What calls that have ended left to be
// written is written first, in the background: see farewells.
func (s *Session) Close(reason error) error {
	s.terminate(reason, wire.ByeClosed, false)
	return nil
}

// fail ends a session whose connection is broken or whose peer breaks rules.
func (s *Session) fail(reason error) {
	err := fmt.Errorf("%s: %w", s.opts.Name, reason)
	var away *dismissal
	if errors.As(reason, &away) {
		s.terminate(err, away.code, false)
		return
	}
	s.terminate(err, wire.ByeProtocol, !errors.Is(reason, wire.ErrProtocol))
}

// terminate ends the session and all its calls for reason. lost says that nothing
// more can be written. What calls have left to say is said in the end that the
// owner chose alone: a peer that breaks rules is listened to no more, so that
// no credit comes for it.
func (s *Session) terminate(reason error, code wire.ByeCode, lost bool) {
	s.mu.Lock()
	lost = lost || s.broken != nil
	if lost {
		s.lost = true
		_ = s.conn.Close()
	}
	if s.ended != nil {
		s.wakeWriter()
		s.mu.Unlock()
		return
	}
	s.ended = reason
	s.telling.Add(1)
	defer s.telling.Done()
	s.drain(reason)
	bye := code
	if code == wire.ByeClosed && s.live.first == nil {
		bye = wire.ByeDone // no call is given up
	}
	s.bye = wire.AppendBye(nil, bye, reason.Error())
	var after callbacks
	for st := s.live.first; st != nil; {
		next := st.nextLive
		if st == s.accepting { // accept ends it, and until then its handler says nothing more
			st.sendErr = reason
			st = next
			continue
		}
		why := reason
		if code != wire.ByeClosed && st.caller && st.id == 0 {
			why = unprocessed{reason} // nothing of it was written, or ever will be
		}
		if code != wire.ByeClosed {
			st.abortUnread(why, &after)
		} else {
			st.abort(why, false, &after)
		}
		st = next
	}
	started := s.started
	if !lost && started {
		s.bell = time.AfterFunc(s.opts.Farewell, s.closeConn)
	}
	s.wakeWriter()
	if !s.occupied {
		s.wakeResident() // to see the peer's end
	}
	s.mu.Unlock()
	if !started {
		_ = s.conn.Close()
	}
	after.run()
	close(s.over)
	if started && s.acceptor != nil {
		s.acceptor.Closed(reason)
	}
}

// closeConn closes the connection, whatever is left to be written.
func (s *Session) closeConn() {
	s.mu.Lock()
	s.lost = true
	s.wakeWriter()
	s.mu.Unlock()
	_ = s.conn.Close()
}

// callbacks are what must be called once the lock is released.
type callbacks struct {
	first   []func() // tell callees of an abort, before it unblocks them
	parkers [2]wait.Parker
	more    []wait.Parker
	last    []func() // tell callers of an abort, after it unblocked them
}

// unpark unparks p in run, unless it is nil.
func (c *callbacks) unpark(p wait.Parker) {
	switch {
	case p == nil:
	case c.parkers[0] == nil:
		c.parkers[0] = p
	case c.parkers[1] == nil:
		c.parkers[1] = p
	default:
		c.more = append(c.more, p)
	}
}

func (c *callbacks) run() {
	for _, f := range c.first {
		f()
	}
	wait.Unpark(c.parkers[0])
	wait.Unpark(c.parkers[1])
	for _, p := range c.more {
		p.Unpark()
	}
	for _, f := range c.last {
		f()
	}
}
