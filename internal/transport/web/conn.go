package web

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/sockopt"
)

// A conn is a connection of HTTP/1.1 that package http uses. It implements [net.Conn].
//
// Until the first request has arrived, it keeps the deadline that the listener has set. A connection
// that is idle for too long is closed when no request is being answered, one that is too old after
// an answer that says so.
type conn struct {
	net.Conn
	session  *session
	handover sniff.Handover
	writes   atomic.Int64 // how many writes have ended

	// Used by the goroutine that reads.
	first  []byte // bytes read before package http took over
	header headerWatch

	// Guarded by session.mu.
	opened bool // the first request has come

	// How much of an answer the client has taken: see limitWritesLocked.
	limited    bool
	stallTimer *time.Timer // nil until the first answer
	seen       progress
	seenAt     time.Time // when seen last changed
}

// A progress shows what the peer has taken. It changes when the peer takes anything.
type progress struct {
	writes int64
	unsent int  // in bytes
	known  bool // unsent is known
}

func newConn(s *Server, h sniff.Handover) *conn {
	c := &conn{Conn: h.Conn, handover: h, first: h.First, header: headerWatch{reading: true}}
	c.session = &session{
		server: s, conn: c, reads: h.Conn, done: make(chan struct{}), ended: make(chan struct{}),
		life: s.newLife(s.idle()), peer: link.Peer{Addr: h.Conn.RemoteAddr(), LocalAddr: h.Conn.LocalAddr(), AuthInfo: h.Auth, Caps: link.Caps{Undecided: true}},
	}
	return c
}

// newLife returns the life of a connection that may wait for its next request for the time idle.
func (s *Server) newLife(idle time.Duration) lifecycle.Life {
	limits := lifecycle.LimitsOf(&s.opts.Config.Connections, true, 0)
	limits.OneWay, limits.Idle, limits.Keepalive = true, idle, lifecycle.Keepalive{}
	return lifecycle.Life{Limits: limits, Clock: lifecycle.System{}}
}

// start starts the timers for the idle time and the age. It reports false if the session has ended
// already.
func (c *conn) start() bool {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := s.performLocked(s.life.Start(true))
	return !idle && s.life.Reason() == nil
}

// onTimer closes a connection that has been without requests for too long, or is too old.
func (c *conn) onTimer() {
	s := c.session
	s.mu.Lock()
	s.timer.Fired()
	idle := s.performLocked(s.life.Fire(false))
	s.mu.Unlock()
	if idle {
		_ = c.Conn.Close()
	}
}

// begin begins to answer a request. It reports false if the connection is about to be closed, or
// if what looks like a request may be the rest of the previous request's body.
func (c *conn) begin() bool {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bodyUnread || s.life.State() != lifecycle.Open {
		return false
	}
	s.performLocked(s.life.CallBegins())
	if !c.opened {
		c.opened = true
		_ = c.Conn.SetDeadline(time.Time{})
	}
	return true
}

// changed is called when the state of the connection has changed. For StateIdle it is
// called when an answer was written, before the next request is read.
func (c *conn) changed(state http.ConnState) {
	c.header.next(state)
	switch state {
	case http.StateIdle:
		s := c.session
		s.mu.Lock()
		c.unlimitWritesLocked()
		last := s.performLocked(s.life.CallEnds()) || s.bodyUnread
		s.mu.Unlock()
		if last {
			_ = c.Conn.Close()
		}
	case http.StateHijacked, http.StateClosed:
		c.end()
	}
}

var errClientClosed = errors.New("the client has closed the connection")

// end ends the session because the connection has ended.
func (c *conn) end() {
	s := c.session
	s.mu.Lock()
	over, a := s.over, s.acceptor
	s.over = true
	c.unlimitWritesLocked()
	s.performLocked(s.life.Closes())
	s.mu.Unlock()
	if over {
		return
	}
	_ = s.Close(errClientClosed)
	a.Gone()
}

// limitWritesLocked limits writes as limitWrites of session says.
//
// What a client's system acknowledges counts as taken. A write that waits for room does not show
// it, because Linux wakes the write only when a third of a large buffer is free. So checkStall also
// calls sockopt.Unsent. If that does not know, the limit is always stall.
func (c *conn) limitWritesLocked() {
	c.limited, c.seen, c.seenAt = true, progress{writes: -1}, time.Now() // calling sockopt.Unsent is a system call
	if c.stallTimer == nil {
		c.stallTimer = time.AfterFunc(stallCheckTime, c.checkStall)
	} else {
		c.stallTimer.Reset(stallCheckTime)
	}
}

// unlimitWritesLocked removes the limit of writes.
func (c *conn) unlimitWritesLocked() {
	c.limited = false
	if c.stallTimer != nil {
		c.stallTimer.Stop()
	}
}

// checkStall makes writes fail if the client has taken nothing for too long.
func (c *conn) checkStall() {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if !c.limited {
		return
	}
	now := time.Now()
	p := progress{writes: c.writes.Load()}
	p.unsent, p.known = sockopt.Unsent(c.Conn)
	if p != c.seen {
		c.seen, c.seenAt = p, now
	}
	patience := stall
	if c.session.life.Reason() != nil && p.known {
		patience = closeTimeout
	}
	if now.Sub(c.seenAt) >= patience {
		_ = c.Conn.SetWriteDeadline(now)
		return
	}
	c.stallTimer.Reset(stallCheckTime)
}

func (c *conn) Read(b []byte) (n int, err error) {
	if c.header.exceeds(c.session.server.maxFields) {
		return 0, c.refuseFields()
	}
	c.header.ask(len(b))
	if len(c.first) > 0 {
		n = sniff.Take(b, &c.first)
	} else {
		n, err = c.Conn.Read(b)
	}
	c.header.add(b[:n])
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writes.Add(1)
	return n, err
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if !c.opened || c.session.readsClosed {
		return nil // keep the deadline that the listener has set, or the one that has ended reads
	}
	return c.Conn.SetReadDeadline(t)
}

// Close implements [net.Conn]. If the client may still be sending, Close gives it some time to
// read the answer: many systems discard what was written if a socket is closed with unread bytes.
func (c *conn) Close() error {
	c.session.mu.Lock()
	linger := c.session.bodyUnread && c.session.life.Reason() == nil
	c.session.mu.Unlock()
	if linger && c.CloseWrite() == nil {
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
	return errors.ErrUnsupported
}
