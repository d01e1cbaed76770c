package quic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	q "github.com/quic-go/quic-go"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/encoded"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/wait"
	"github.com/nearcall/nearcall/internal/wire"
)

// sessionOptions configure a session.
type sessionOptions struct {
	name      string // the peer's name, for errors
	client    bool   // this side opened the connection
	config    *options.Connections
	limits    lifecycle.Limits
	silence   lifecycle.Silence // guarded by the session's mu
	handshake time.Duration     // limit for the peer's HELLO
	gone      func()            // called when the connection is closed; may be nil
}

// A session is one side of a connection.
//
// Locks: a stream's mu is locked before the session's. No lock is held while code outside this
// module runs, except methods of quic-go that do not block. It implements [link.Session].
type session struct {
	sessionOptions
	conn     *q.Conn
	peer     *link.Peer
	acceptor link.Acceptor // nil if the peer's calls are refused; set by start

	met        chan struct{}      // closed when the peer's HELLO has arrived
	calling    context.Context    // ends when no new calls are made
	stopCalls  context.CancelFunc // ends calling
	over       chan struct{}      // closed when all calls have ended
	closed     chan struct{}      // closed when the connection is closed and Gone was called
	drained    chan struct{}      // closed when no more calls of the peer are accepted
	answered   atomic.Bool        // the peer has answered one of our calls
	held       atomic.Int64       // bytes of messages that wait to be received, on all calls
	taken      atomic.Int64       // bytes of large replies that quic-go has put into packets
	peerDrains atomic.Bool        // the peer takes no more calls
	keeper     encoded.Keeper     // of messages that arrive
	counted    counters.Session

	mu      sync.Mutex
	hello   wire.Hello // the peer's; until it arrives, the protocol's minimum
	control *q.SendStream
	drain   drain
	life    lifecycle.Life  // without PINGs
	timer   lifecycle.Timer // of life
	served  bool            // the peer has made a call
	seen    uint64          // the number of the last call that the peer has made
	opened  uint64          // the number of the last call that this side has made
	live    map[*stream]struct{}
	stall   stallCheck
	spent   []*q.Stream // ended calls whose credit is not released yet
	release *time.Timer // releases this credit; nil if spent is empty
	looks   *time.Timer // calls look
}

func newSession(conn *q.Conn, o sessionOptions) *session {
	s := &session{
		sessionOptions: o,
		conn:           conn,
		met:            make(chan struct{}),
		over:           make(chan struct{}),
		closed:         make(chan struct{}),
		drained:        make(chan struct{}),
		hello:          wire.Hello{Block: wire.MinBlock},
		live:           make(map[*stream]struct{}),
	}
	s.peer = &link.Peer{
		Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), Caps: link.Caps{Blocks: true, OneShot: true, Parallel: true}, AuthInfo: link.TLSInfo(conn.ConnectionState().TLS), Path: counters.QUIC,
	}
	s.calling, s.stopCalls = context.WithCancel(context.Background())
	s.life = lifecycle.Life{Limits: o.limits, Clock: lifecycle.System{}}
	s.life.Keepalive = lifecycle.Keepalive{} // quic-go's, see look
	return s
}

// start starts the session. a handles the peer's calls; if it is nil, they are refused.
func (s *session) start(a link.Acceptor) {
	s.acceptor = a
	s.look()
	s.greet()
	go s.readControl()
	if a != nil {
		go s.accept()
	}
	context.AfterFunc(s.conn.Context(), s.connClosed)
}

// greet opens the control stream and sends HELLO.
func (s *session) greet() {
	control, err := s.conn.OpenUniStream()
	if err != nil {
		return // the connection is closed
	}
	h := wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: s.maxHeader()}
	if s.acceptor == nil {
		h.Features |= wire.FeatureNoCalls
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.control = control
	s.sayLocked(wire.AppendHello(nil, &h))
	s.performLocked(s.life.Start(s.acceptor != nil))
}

// meet waits for the peer's HELLO.
func (s *session) meet(ctx context.Context) error {
	select {
	case <-s.met:
		return nil
	case <-s.over:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.life.Reason()
	case <-ctx.Done():
		return fmt.Errorf("%s: the handshake is not complete: %w", s.name, ctx.Err())
	}
}

// reset resets both directions of a stream of which nothing was sent.
func reset(qs *q.Stream, code wire.ResetCode) {
	qs.CancelRead(q.StreamErrorCode(code))
	qs.CancelWrite(q.StreamErrorCode(code))
}

// open opens a call. It waits while the peer's limit of calls is reached.
func (s *session) open(ctx context.Context, o *link.CallHeader) (*stream, error) {
	if err := s.check(ctx, o); err != nil {
		return nil, err
	}
	qs, err := s.conn.OpenStream()
	if _, full := errors.AsType[*q.StreamLimitReachedError](err); full {
		qs, err = s.openLater(ctx)
	}
	if err != nil {
		if err := link.ContextErr(ctx); err != nil {
			return nil, err
		}
		// The connection is closed, or was drained. The channel of Done must be closed before the
		// caller learns of this, so that the caller uses another connection.
		if cause := context.Cause(s.conn.Context()); cause != nil {
			s.end(s.reasonOf(cause), false)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.performLocked(s.life.RefuseOwn(fmt.Errorf("%s: %w", s.name, err)))
		return nil, link.Unprocessed{Err: s.life.Refusal(), Unsent: true}
	}
	st := &stream{session: s, qs: qs, caller: true, deadline: o.Deadline, sends: o.Encoding}
	st.in.Encoding = o.Encoding
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal := s.life.Refusal(); refusal != nil {
		reset(qs, wire.ResetCancelled)
		return nil, link.Unprocessed{Err: refusal, Unsent: true}
	}
	s.live[st] = struct{}{}
	s.performLocked(s.life.CallBegins())
	s.opened = max(s.opened, numberOf(qs.StreamID()))
	return st, nil
}

// check returns an error if the peer does not accept such a call. If this depends on the peer's
// HELLO, check waits for it.
func (s *session) check(ctx context.Context, o *link.CallHeader) error {
	n := wire.HeadSize(o)
	if !s.client || n > wire.MinBlock {
		select {
		case <-s.met:
		case <-s.Done():
		case <-ctx.Done():
			return link.ContextEnd(wait.DoneErr(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.life.Refusal() != nil:
		return link.Unprocessed{Err: s.life.Refusal(), Unsent: true}
	case s.hello.Features&wire.FeatureNoCalls != 0:
		return fmt.Errorf("%s: %w", s.name, link.ErrOneWay)
	case n > s.hello.Block:
		return encoded.TooLong("request header", n, s.hello.Block)
	}
	return nil
}

// openLater opens a stream once the peer takes another one.
func (s *session) openLater(ctx context.Context) (*q.Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.calling, cancel)()
	return s.conn.OpenStreamSync(ctx)
}

func (s *session) NewStream(ctx context.Context, o *link.CallHeader) (link.Stream, error) {
	if err := link.ContextErr(ctx); err != nil {
		return nil, err
	}
	st, err := s.open(ctx, o)
	if err != nil {
		return nil, err
	}
	st.mu.Lock()
	st.sendLocked(&wire.Step{Stream: 1, Open: o, Timeout: timeoutOf(o.Deadline)})
	st.mu.Unlock()
	go st.pump()
	return st, nil
}

// timeoutOf returns the time until a deadline, at least a nanosecond; 0 if there is none.
func timeoutOf(deadline time.Time) time.Duration {
	if deadline.IsZero() {
		return 0
	}
	return max(time.Until(deadline), 1)
}

func (s *session) Done() <-chan struct{}  { return s.calling.Done() }
func (s *session) Ended() <-chan struct{} { return s.over }
func (s *session) Peer() *link.Peer       { return s.peer }

// Outcome reports whether the peer has answered a call, and why no new calls are made.
func (s *session) Outcome() (answered bool, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered.Load(), s.life.Refusal()
}
