// Package mux carries calls over one connection with the protocol of docs/protocol.md,
// as a [link.Session]. It is independent of the kind of connection and of gRPC's rules.
//
// A call avoids goroutine switches. Over a bare socket, a caller that waits for its reply reads
// the connection itself, for all calls: see reading. A goroutine that queues a frame writes it,
// together with the frames of others: see writing. In other cases goroutines of the session read
// and write: with many concurrent callers, with a full socket, and over connections that are more
// than a bare socket. The reading goroutine only moves bytes. It never decodes a message or waits
// for a call, so no call blocks another. It runs handlers only if they are known to be quick (see
// inlineHandlers).
package mux

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux/waits"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// A Conn is the connection under a session. Close unblocks pending Reads and Writes.
// Every net.Conn is a Conn.
type Conn interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// A Prompt is a Conn with nonblocking reads and writes. One goroutine may read while another
// writes. A deadline in the past interrupts its Read, which works again once the deadline is reset.
type Prompt interface {
	// TryRead reads without blocking. If there is nothing to read it returns 0 and no error.
	TryRead(b []byte) (n int, err error)

	// TryWrite writes the buffers as far as it can without blocking.
	TryWrite(all ...[]byte) (n int, err error)
}

// A Gatherer is a Conn that writes several buffers at once, as a socket does for net.Buffers.
type Gatherer interface {
	WriteAll(all [][]byte) (n int64, err error)
}

// A Placer is a Conn whose two ends share memory. Large messages are put into that memory, and
// only their place is sent. Its methods are safe for concurrent use.
type Placer interface {
	// Place allocates n bytes or slightly more. It returns the memory and the place at which the
	// peer finds it, or false if there is none. Then the caller calls Placed if it has written a
	// message there and will send the place, or Done if it has given up.
	Place(n int) (b []byte, at int, ok bool)
	Placed(at int)

	// Draft allocates n bytes or more, in which a user builds a message. The memory is the user's
	// until Done, even if the connection is closed. If b is in a draft, and no other message in
	// that draft is on its way, PlaceOf returns the place of b, which the caller then sends.
	Draft(n int) (b []byte, at int, ok bool)
	Done(at int)
	PlaceOf(b []byte) (at int, ok bool)

	// Hold keeps a message of n bytes from the peer available until Release, even if the connection
	// is closed. The parameter at is its place. An error means that the peer is at fault.
	Hold(at, n int) error

	// Check returns an error if the message that is held at this place must not be fetched. One
	// reason is that the peer has allocated less memory than its held messages need. The other is
	// that the message was not kept when the connection was closed; then the error wraps
	// [link.ErrExhausted]. Fetch fills b with the bytes at the place. It fails if the memory
	// cannot be read.
	Check(at int) error
	Fetch(b []byte, at int) error
	Release(at int)

	// Returned frees a place that the peer has returned, or that was never sent. An error
	// means that the peer is at fault.
	Returned(at int) error
}

// PromptOf returns conn if it is a Prompt, a new Prompt if it is a bare socket, and nil otherwise.
func PromptOf(conn Conn) Prompt {
	if p, ok := conn.(Prompt); ok {
		return p
	}
	return newSocket(conn)
}

// Options say what a session is for.
type Options struct {
	Config *options.Connections
	Name   string // the peer's name, for errors
	Client bool   // this side opened the connection
	Peer   link.Peer

	HelloTime    time.Duration // time limit for the peer's HELLO; negative for no time
	CloseTimeout time.Duration // after Close, how long the peer may read nothing; 5 s by default

	First []byte // bytes that were already read from conn

	// Greeted says that the line and HELLO of this side, which Greeting returns, were sent before.
	Greeted bool
}

// granted returns the window that a stream grants at first.
func (o *Options) granted() int { return waits.Granted(o.Config.StreamWindow) }

// admits reports whether the peer may open another call while it has some open ones.
func (o *Options) admits(open uint32) bool {
	return o.Config.MaxStreams == 0 || open < o.Config.MaxStreams
}

// A Session is one side of a connection. One lock guards the session and all its
// streams. It is not held while code outside this package runs.
type Session struct {
	opts          Options
	conn          Conn
	raw           Prompt         // nil if the connection is more than a bare socket, such as TLS
	placer        Placer         // nil if all messages go through the connection
	acceptor      link.Acceptor  // nil if the peer's calls are refused; set before the first read
	helloReceived chan struct{}  // closed when the peer's HELLO has arrived
	done          chan struct{}  // closed when no new calls are made
	allCallsEnded chan struct{}  // closed when all calls have ended
	gone          chan struct{}  // closed when no goroutine of the session runs any more
	drained       chan struct{}  // closed when no more calls of the peer are accepted
	loops         sync.WaitGroup // the read loop and the writer
	terminating   sync.WaitGroup // goroutines in terminate
	counted       counters.Session

	mu           sync.Mutex
	life         lifecycle.Life
	timer        lifecycle.Timer // of life
	hello        wire.Hello      // the peer's; until it arrives, the protocol's minimum
	streams      map[uint64]*stream
	silent       silentCalls
	live         map[*stream]struct{} // the values of streams, and calls that have no id yet
	streamsBegun uint64               // number of streams so far
	lastOwn      uint64               // the last id of our calls
	last         uint64               // the last id of the peer's calls
	calls        uint32               // open calls of the peer
	ownCalls     uint64               // open calls of this side, without those over the peer's limit
	answered     bool                 // the peer has sent a frame of a call that was already open
	connIn       int                  // what the peer has left of the connection's credit
	taken        int                  // credit of the connection that was not returned yet
	unread       int                  // sum of unread over all streams
	written      chan struct{}        // nil before Written is called
	drain        drain
	pings        uint64 // number of PINGs sent
	pingLimit    lifecycle.PingLimit
	parkers      wait.Pool
	keeper       encoded.Keeper // of messages in places; needs no lock
	roles        waits.Roles
	reading      reading
	inline       inlineHandlers
	writing      writing
}

// New returns a session over conn and takes ownership of conn. Nothing is read or
// written before Start.
func New(conn Conn, o Options) *Session {
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 5*time.Second)
	o.Peer.OneShot = true
	s := &Session{
		opts:          o,
		conn:          conn,
		helloReceived: make(chan struct{}),
		done:          make(chan struct{}),
		allCallsEnded: make(chan struct{}),
		gone:          make(chan struct{}),
		drained:       make(chan struct{}),
		hello:         wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock},
		streams:       make(map[uint64]*stream),
		live:          make(map[*stream]struct{}),
		connIn:        o.Config.ConnWindow,
	}
	s.raw = PromptOf(conn)
	if s.placer, _ = conn.(Placer); s.placer != nil {
		s.opts.Peer.Draft = s.draft
	}
	s.reading.dec.Places, s.reading.dec.Block = s.placer != nil, o.Config.MaxHeader
	s.reading.spinBudget.earned = maxEarned
	s.writing.connOut = s.hello.Connection
	s.life = lifecycle.Life{Limits: lifecycle.LimitsOf(o.Config, !o.Client, o.CloseTimeout), Clock: lifecycle.System{}}
	return s
}

// Greeting returns the first line and the HELLO of a side with these options. takesCalls says that
// it has an acceptor. features is the rest of HELLO's features, and near is its field of that name.
func (o Options) Greeting(takesCalls bool, features uint64, near string) []byte {
	c := o.Config
	hello := wire.Hello{Version: wire.Version, Stream: int64(o.granted()), Connection: int64(c.ConnWindow), Calls: uint64(c.MaxStreams), Block: c.MaxHeader, Features: features, Near: near}
	if !o.Client {
		hello.Ping, hello.IdlePing = millis(c.LeastPing), millis(c.LeastIdlePing)
	}
	if !takesCalls {
		hello.Features |= wire.FeatureNoCalls
	}
	return wire.AppendHello([]byte(wire.Magic), &hello)
}

// Start starts the session. acceptor handles the peer's calls; if it is nil, they are refused.
func (s *Session) Start(acceptor link.Acceptor) {
	s.mu.Lock()
	s.acceptor = acceptor
	if !s.opts.Greeted {
		s.writing.control = append(s.opts.Greeting(acceptor != nil, 0, ""), s.writing.control...)
	}
	s.roles.Reader = waits.ReadLoop
	s.wakeWriterLocked() // to send HELLO
	s.performLocked(s.life.Start(acceptor != nil))
	ended := s.life.Reason()
	s.mu.Unlock()
	if ended != nil && acceptor != nil {
		acceptor.Closed(ended) // the session was closed before Start
	}
	s.loops.Go(s.writeLoop)
	s.loops.Add(1) // the last read loop calls Done
	go s.readLoop()
	go func() {
		s.loops.Wait()
		s.terminating.Wait()
		_ = s.conn.Close()
		s.mu.Lock()
		s.performLocked(s.life.Closes())
		if s.reading.idle != nil {
			s.reading.idle.Stop()
		}
		if s.written == nil {
			s.written = make(chan struct{}) // for Written, if it is called later
		}
		s.closeWrittenLocked()
		s.mu.Unlock()
		close(s.gone)
		if acceptor != nil {
			acceptor.Gone()
		}
	}()
}

// Meet waits for the peer's HELLO. It returns an error if the session ends first. If
// HELLO has arrived, it returns nil even if the session has ended since.
func (s *Session) Meet(ctx context.Context) error {
	select {
	case <-s.helloReceived:
		return nil
	case <-s.allCallsEnded:
		if link.IsClosed(s.helloReceived) {
			return nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.life.Reason()
	case <-ctx.Done():
		return fmt.Errorf("%s: the handshake is not complete: %w", s.opts.Name, ctx.Err())
	}
}

// NewStream implements [link.Session]. It blocks only while the peer's limit of open
// calls is reached.
func (s *Session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st := &stream{waiter: wait.TaskOf(ctx)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openLocked(st, wire.Step{Open: o}, nil); err != nil {
		return nil, err
	}
	for st.held && st.reason == nil {
		if err := s.sleep(ctx, st, &st.sender); err != nil {
			var after callbacks // stays empty: the stream has no other user
			st.abortLocked(link.ContextEnd(err), false, &after)
		}
	}
	if st.held {
		return nil, st.reason
	}
	s.wakeWriterLocked() // not flush: the first message usually follows, and goes out with it
	st.waiter = nil
	return st, nil
}

// openLocked makes st a new call of this side, whose first step is step. If the peer's limit of
// open calls is reached, the call is held. It fails if the session makes no new calls.
func (s *Session) openLocked(st *stream, step wire.Step, message *buffer) error {
	o := step.Open
	switch n := wire.HeadSize(o); {
	case n > s.hello.Block:
		return encoded.TooLong("request header", n, s.hello.Block)
	case s.life.Refusal() != nil:
		return link.Unprocessed{Err: s.life.Refusal(), Unsent: true}
	case s.hello.Features&wire.FeatureNoCalls != 0:
		return fmt.Errorf("%s: %w", s.opts.Name, link.ErrOneWay)
	}
	st.caller, st.deadline = true, o.Deadline
	s.initStreamLocked(st, 0, o.Encoding)
	if st.held = s.hello.Calls > 0 && s.ownCalls >= s.hello.Calls; !st.held {
		s.ownCalls++
	}
	st.enqueueLocked(step, message)
	return nil
}

// Done implements [link.Session].
func (s *Session) Done() <-chan struct{} { return s.done }

// Ended implements [link.Session].
func (s *Session) Ended() <-chan struct{} { return s.allCallsEnded }

// Gone returns a channel that is closed when the connection is closed and no goroutine
// of the session runs any more.
func (s *Session) Gone() <-chan struct{} { return s.gone }

// Outcome reports why no new calls are made. It also reports whether the peer has sent a
// frame of an open call, made by either side.
func (s *Session) Outcome() (answered bool, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered, s.life.Refusal()
}

// Peer implements [link.Session].
func (s *Session) Peer() *link.Peer { return &s.opts.Peer }

// callbacks are calls to make after mu is released.
type callbacks struct {
	first   []func() // tell callees that a call was aborted, before its goroutines wake
	parkers []wait.Parker
	last    []func() // tell callers that a call was aborted, after its goroutines wake
}

// unpark schedules p to be unparked by run. p may be nil.
func (c *callbacks) unpark(p wait.Parker) {
	if p != nil {
		c.parkers = append(c.parkers, p)
	}
}

func (c *callbacks) run() {
	for _, f := range c.first {
		f()
	}
	for _, p := range c.parkers {
		p.Unpark()
	}
	for _, f := range c.last {
		f()
	}
}

// A buffer is pooled memory for reads, for writes and for queued messages.
type buffer = encoded.Buffer

func newBuffer(n int) *buffer { return encoded.NewBuffer(n) }

// Begin begins a session over conn as a client, and returns it once the server has sent its HELLO. If
// it fails, conn is closed. accept returns the acceptor of the server's calls, or nil for none; it may
// be nil, too.
func Begin(ctx context.Context, conn Conn, o Options, accept func(link.Session) link.Acceptor) (*Session, error) {
	s := New(conn, o)
	var acceptor link.Acceptor
	if accept != nil {
		acceptor = accept(s)
	}
	s.Start(acceptor)
	if err := s.Meet(ctx); err != nil {
		_ = s.Close(err)
		return nil, err
	}
	return s, nil
}
