package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const (
	lingering      = time.Second      // how long the rest of a request is read after its answer
	closeTimeout   = 5 * time.Second  // how long a session that ends waits for a peer that takes or sends nothing
	stall          = 30 * time.Second // how long an ended call waits for a peer that takes nothing
	stallCheckTime = time.Second / 2  // how often the session checks whether the peer takes anything
)

// A session is one connection: the [link.Session] of the calls that come over it, one at a time.
//
// The session ends when Close is called or the connection ends. After that, the session closes the
// connection once the answer to the current request, if there is one, is written. Finally it calls
// Gone. Until the first request has arrived, the connection keeps the deadline that the listener
// has set.
//
// A connection that is idle for too long, or too old, is closed when no request is being
// answered. It implements [callSession].
type session struct {
	conn     net.Conn
	server   *Server
	handover sock.Handover
	peer     link.Peer
	done     chan struct{}
	ended    chan struct{}
	counted  counters.Session
	writes   atomic.Int64 // how many writes to the connection have ended

	mu          sync.Mutex
	acceptor    link.Acceptor // nil until start
	stream      *stream       // the call of the current request; nil for none
	busy        bool          // a request is being answered
	opened      bool          // the first request has come
	draining    bool          // no more requests after the current one
	bodyUnread  bool          // no further request can be read from the connection, because a body was not read to its end
	reason      error         // why the session has ended; nil if it has not
	readsClosed bool          // reads have ended, and no deadline may be set for them
	idleClosed  bool          // the session began to drain while no request was being answered, so the connection is closed
	over        bool          // the connection has ended, or belongs to a WebSocket

	idle, age *time.Timer
	idleSince time.Time

	// How much of an answer the client has taken: see limitWrites.
	limited    bool
	stallTimer *time.Timer // nil until the first answer
	seen       progress
	seenAt     time.Time // when seen last changed
}

// A progress shows what the peer has taken. It changes when the peer takes anything.
type progress struct {
	writes int64
	unsent int // in bytes, or unknown
}

const unknown = -1

func newSession(s *Server, h sock.Handover) *session {
	return &session{
		conn: h.Conn, server: s, handover: h,
		peer: link.Peer{Addr: h.Conn.RemoteAddr(), LocalAddr: h.Conn.LocalAddr(), AuthInfo: h.Auth, Undecided: true},
		done: make(chan struct{}), ended: make(chan struct{}),
	}
}

// start sets the acceptor. It reports false if the session has ended already.
func (c *session) start(a link.Acceptor) bool {
	c.mu.Lock()
	c.acceptor = a
	reason := c.reason
	if reason == nil {
		c.startAges()
	}
	c.mu.Unlock()
	if reason == nil {
		return true
	}
	_ = c.conn.Close()
	a.Closed(reason)
	a.Gone()
	return false
}

var errOneWay = fmt.Errorf("an HTTP/1 client: %w", link.ErrOneWay)

func (c *session) Invoke(context.Context, *link.UnaryCall) error { return link.ErrNoCall }

func (c *session) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return nil, errOneWay
}

func (c *session) Done() <-chan struct{}  { return c.done }
func (c *session) Ended() <-chan struct{} { return c.ended }
func (c *session) Peer() *link.Peer       { return &c.peer }

// Drain implements [link.Session]. The client learns of it from the answer to its current request.
// If there is no current request, Drain closes the connection, which is idle between requests, or
// which a browser has opened in advance. A request whose body is still arriving becomes a call at
// once, because the acceptor will take no calls later.
func (c *session) Drain() <-chan struct{} {
	c.mu.Lock()
	idle := c.beginDrain()
	st := c.stream
	c.mu.Unlock()
	if idle {
		_ = c.conn.Close()
	}
	if st != nil {
		st.begin()
		st.limitBody()
	}
	return c.done
}

// beginDrain makes the session take no more requests. It reports whether the caller must close the
// connection, because no request is being answered. mu is held.
func (c *session) beginDrain() bool {
	c.drain()
	c.idleClosed = c.idleClosed || !c.busy && !c.over
	return c.idleClosed
}

func (c *session) Retire() { c.Drain() }

// Written implements [link.Session]. It is not used, because the peer never serves calls.
func (c *session) Written() <-chan struct{} { return c.ended }

// drain closes done. mu is held.
func (c *session) drain() {
	if !c.draining {
		c.draining = true
		close(c.done)
	}
}

func (c *session) Close(reason error) error {
	c.mu.Lock()
	if c.reason != nil {
		c.mu.Unlock()
		return nil
	}
	c.drain()
	c.reason = reason
	a, st, busy, over := c.acceptor, c.stream, c.busy, c.over
	c.mu.Unlock()
	if st != nil {
		st.Abort(reason)
	}
	c.counted.End()
	close(c.ended)
	if a != nil {
		a.Closed(reason)
	}
	switch {
	case over:
		return nil
	case !busy:
		return c.conn.Close()
	}
	c.limitWrites()
	if st != nil { // its answer might not be written yet
		c.limitReads(time.Now().Add(closeTimeout))
	} else {
		c.limitReads(time.Now().Add(lingering))
	}
	return nil
}

// changed is called when the state of the connection has changed. For StateIdle it is
// called when an answer was written, before the next request is read.
func (c *session) changed(state http.ConnState) {
	switch state {
	case http.StateIdle:
		c.mu.Lock()
		c.busy, c.idleSince = false, time.Now()
		c.unlimitWrites()
		last := c.draining || c.bodyUnread
		c.mu.Unlock()
		if last {
			_ = c.conn.Close()
		}
	case http.StateHijacked, http.StateClosed:
		c.end()
	}
}

var errClientClosed = errors.New("the client has closed the connection")

// end ends the session because the connection has ended.
func (c *session) end() {
	c.mu.Lock()
	over, a := c.over, c.acceptor
	c.over, c.busy = true, false
	c.unlimitWrites()
	c.stopAges()
	c.mu.Unlock()
	if over {
		return
	}
	_ = c.Close(errClientClosed)
	a.Gone()
}

// begin begins to answer a request. It reports false if the connection is about to be closed, or
// if what looks like a request may be the rest of the previous request's body.
func (c *session) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bodyUnread || c.idleClosed || c.reason != nil {
		return false
	}
	c.busy = true
	if !c.opened {
		c.opened = true
		_ = c.conn.SetDeadline(time.Time{})
	}
	return true
}

func (c *session) accepted() link.Acceptor { return c.acceptor }
func (c *session) localAddr() net.Addr     { return c.peer.LocalAddr }
func (c *session) window() int             { return c.server.opts.Window }

func (c *session) serves(st *stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = st
	c.counted.Begin(false, counters.HTTP)
	return c.reason
}

func (c *session) leaves() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining || c.bodyUnread
}

func (c *session) leaveBodyUnread() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodyUnread = true
}

func (c *session) limitReads(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readsClosed {
		_ = c.conn.SetReadDeadline(t)
	}
}

func (c *session) endReads() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodyUnread, c.readsClosed = true, true
	_ = c.conn.SetReadDeadline(time.Now())
}

// limitWrites implements [callSession]. It makes writes fail once the client has taken nothing for the
// time stall, or for the time closeTimeout if the session has ended. Without this limit a client
// may take an answer when it likes.
//
// What a client's system acknowledges counts as taken. A write that waits for room does not show
// it, because Linux wakes the write only when a third of a large buffer is free. So checkStall also
// calls unsent. If unsent does not know, the limit is always stall.
func (c *session) limitWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.limited, c.seen, c.seenAt = true, progress{writes: -1}, time.Now() // calling unsent is a system call
	if c.stallTimer == nil {
		c.stallTimer = time.AfterFunc(stallCheckTime, c.checkStall)
	} else {
		c.stallTimer.Reset(stallCheckTime)
	}
}

// unlimitWrites removes the limit of writes. mu is held.
func (c *session) unlimitWrites() {
	c.limited = false
	if c.stallTimer != nil {
		c.stallTimer.Stop()
	}
}

// checkStall makes writes fail if the client has taken nothing for too long.
func (c *session) checkStall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.limited {
		return
	}
	now := time.Now()
	p := progress{c.writes.Load(), unsent(c.conn)}
	if p != c.seen {
		c.seen, c.seenAt = p, now
	}
	patience := stall
	if c.reason != nil && p.unsent != unknown {
		patience = closeTimeout
	}
	if now.Sub(c.seenAt) >= patience {
		_ = c.conn.SetWriteDeadline(now)
		return
	}
	c.stallTimer.Reset(stallCheckTime)
}

// A conn is the connection of a session that package http uses. It implements [net.Conn].
type conn struct {
	net.Conn
	session *session
	first   []byte      // bytes read before package http took over; only for the reading goroutine
	header  headerCount // like first
	lengths lengths     // like first
}

func (c *conn) Read(b []byte) (n int, err error) {
	if c.header.exceeds(c.session.server.maxFields) {
		return 0, c.refuseFields()
	}
	c.lengths.ask(len(b))
	if len(c.first) > 0 {
		n = copy(b, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
	} else {
		n, err = c.Conn.Read(b)
	}
	c.header.add(b[:n])
	c.lengths.add(b[:n])
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.session.writes.Add(1)
	return n, err
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if !c.session.opened || c.session.readsClosed {
		return nil // keep the deadline that the listener has set, or the one that has ended reads
	}
	return c.Conn.SetReadDeadline(t)
}

// Close implements [net.Conn]. If the client may still be sending, Close gives it some time to
// read the answer: many systems discard what was written if a socket is closed with unread bytes.
func (c *conn) Close() error {
	c.session.mu.Lock()
	linger := c.session.bodyUnread && c.session.reason == nil
	c.session.mu.Unlock()
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok && linger && h.CloseWrite() == nil {
		_ = c.Conn.SetReadDeadline(time.Now().Add(lingering))
		_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, plenty))
	}
	return c.Conn.Close()
}

// CloseWrite lets package http close a connection in steps.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}
