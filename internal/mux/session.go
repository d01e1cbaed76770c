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

// millis returns d in milliseconds, rounded up.
func millis(d time.Duration) uint64 {
	return (uint64(max(d, 0)) + uint64(time.Millisecond-1)) / uint64(time.Millisecond)
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

// checkOpened returns an error if id is the id of a call that this side has never opened. The
// session checks this before it decodes a frame, because decoding can cost this side more than the
// frame costs the peer.
func (s *Session) checkOpened(id uint64) error {
	if !s.isOwn(id) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.lookupLocked(id)
	return err
}

// lookupLocked returns the stream with the given id, or nil if the call has ended. An id that was
// never opened is an error.
func (s *Session) lookupLocked(id uint64) (*stream, error) {
	if st := s.streams[id]; st != nil {
		st.heard = s.silent.reads
		return st, nil
	}
	last := s.last
	if s.isOwn(id) {
		last = s.lastOwn
	}
	if id > last {
		return nil, wire.ProtocolError("the peer speaks of call %d, which was not opened", id)
	}
	return nil, nil
}

// isOwn reports whether id belongs to the calls that this side opens: odd for clients,
// even for servers.
func (s *Session) isOwn(id uint64) bool { return s.opts.Client == (id%2 == 1) }

// wakeLocked wakes the goroutine that waits for the peer at spot, if any, whether it reads or is
// parked. If it is parked, wakeLocked returns its Parker, for the caller to unpark. Only wakeLocked
// may wake goroutines that wait in awaitLocked or sleepLocked: one of them might read, and roles
// counts the others.
func (s *Session) wakeLocked(spot *wait.Cond) wait.Parker {
	if s.reading.caller == spot {
		s.doLocked(s.roles.StopCaller())
		return nil
	}
	p := spot.Wake()
	if p != nil {
		s.roles.Woken()
	}
	return p
}

// doLocked performs the tasks that a rule has returned.
func (s *Session) doLocked(t waits.Task) {
	if t == 0 {
		return
	}
	if t&waits.WakeReadLoop != 0 {
		wait.Unpark(s.reading.readLoop.Wake())
	}
	if t&waits.StartReadLoop != 0 {
		s.replaceReadLoopLocked()
	}
	if t&waits.StartIdleTimer != 0 {
		s.startReadIdleLocked()
	}
	if t&waits.InterruptRead != 0 {
		_ = s.conn.SetReadDeadline(longAgo)
	}
	if t&waits.WakeWriter != 0 {
		wait.Unpark(s.writing.writer.Wake())
	}
}

var longAgo = time.Unix(1, 0)

// wakeWriterLocked wakes the writer to write queued frames, or to end the session.
func (s *Session) wakeWriterLocked() { s.doLocked(s.roles.CallWriter(s.writing.lost)) }

// performLocked does what life says.
func (s *Session) performLocked(do lifecycle.Task) {
	if do == 0 {
		return
	}
	if do&lifecycle.RefuseOwn != 0 {
		close(s.done)
		var after callbacks
		for s.writing.held.first != nil {
			s.writing.held.first.abortLocked(link.Unprocessed{Err: s.life.Refusal(), Unsent: true}, false, &after)
		}
		after.run() // wakes the callers, which have set no callbacks yet
	}
	if do&lifecycle.Announce != 0 {
		s.writing.control = wire.AppendDrain(s.writing.control, wire.NoLast)
		s.drain.ping = s.appendPingLocked()
	}
	if do&lifecycle.RefusePeer != 0 {
		close(s.drained)
		s.writing.control = wire.AppendDrain(s.writing.control, s.last)
	}
	if do&lifecycle.Ping != 0 {
		s.appendPingLocked()
	}
	switch {
	case s.life.Reason() != nil:
	case do&lifecycle.Finish != 0:
		reason := fmt.Errorf("%s: %w", s.opts.Name, s.life.Leaving())
		s.terminating.Go(func() { s.terminate(reason, wire.ByeDone, false) })
	case do&lifecycle.Expire != 0:
		s.terminating.Go(func() { s.terminate(lifecycle.ErrOld, wire.ByeClosed, false) })
	case do&lifecycle.Lost != 0:
		s.terminating.Go(func() { s.fail(lifecycle.ErrDead) })
	}
	if do&lifecycle.Close != 0 {
		s.writing.lost = true // the caller closes the connection, without mu: over TLS that writes
	}
	if do&lifecycle.SetTimer != 0 {
		s.timer.Set(s.life.Next(), s.onTimer)
	}
	if do&^lifecycle.SetTimer != 0 && s.life.State() != lifecycle.Opening {
		s.wakeWriterLocked()
	}
}

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
