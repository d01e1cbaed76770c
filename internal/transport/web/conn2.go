package web

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/sniff"
)

// TakeHTTP2 serves a connection of HTTP/2 and owns it from then on. It returns at once.
func (s *Server) TakeHTTP2(h sniff.Handover) {
	in := bufio.NewReader(io.MultiReader(bytes.NewReader(h.First), h.Conn))
	h.First = nil // conn2 keeps h
	c := &conn2{Conn: h.Conn, in: in, left: len(preface), handover: h, http: s.newHTTP2(), server: s, life: s.newLife2(), drained: make(chan struct{}), closed: make(chan struct{})}
	c.out.L = new(sync.Mutex)
	if !s.add(c) {
		sniff.RefuseRequests(c, stopping)
		return
	}
	c.step(func(l *lifecycle.Life) lifecycle.Task { return l.Start(true) }, "")
	// The error is ignored: it does not tell whether package http took the connection before
	// the shutdown.
	lis := &single{conn: c}
	_ = c.http.Serve(lis)
	if lis.conn != nil {
		sniff.RefuseRequests(c, stopping)
	}
}

// add records that c is open. It reports false if the server has ended.
func (s *Server) add(c *conn2) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.conns[c] = struct{}{}
	}
	return !s.ended
}

// end makes the server take no more connections of HTTP/2. It returns those that are open.
func (s *Server) end() (open []*conn2) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for c := range s.conns {
		open = append(open, c)
	}
	return open
}

// Close closes the HTTP/2 connections. All calls have ended. Clients have some time to take the
// last answers, more if the server stops gracefully.
func (s *Server) Close(gracefully bool) {
	patience := lingering
	if gracefully {
		patience = closeTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	open := s.end()
	for _, c := range open {
		c.shutdown()
	}
	for _, c := range open {
		select {
		case <-c.closed:
		case <-ctx.Done():
			_ = c.Close()
		}
	}
}

// A client of HTTP/2 may make requests until it has read GOAWAY, and package http answers those
// that arrive before it writes its own GOAWAY, and no later ones. So a server that refused calls
// earlier would lose some. A connection has drained when GOAWAY was written and no request is being
// answered: each request that package http will ever answer has become a call then.

// drainTimeout is how long Drain waits for a connection. One on which a call runs for longer has
// drained as well, unless the processor was busy for all that time.
const drainTimeout = time.Second

// Drain tells the clients of HTTP/2 connections, with GOAWAY, to make no more requests, and waits
// until those that they have made are calls.
func (s *Server) Drain() {
	open := s.end()
	for _, c := range open {
		go c.leave("graceful_stop") // it could wait for a client that reads nothing, until Close
	}
	deadline := time.After(drainTimeout)
	for _, c := range open {
		select {
		case <-c.drained:
		case <-deadline:
			return
		}
	}
}

// changed records the connection's state.
func (c *conn2) changed(state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != http.StateClosed {
		c.state = state
	}
	c.checkDrainedLocked()
}

func (c *conn2) checkDrainedLocked() {
	if !link.IsClosed(c.drained) && (c.state == http.StateClosed || c.goAway && c.state == http.StateIdle) {
		close(c.drained)
	}
}

// A conn2 is the connection of HTTP/2 that package http uses. It sees the frames of both
// directions, and can write its own frames between those of package http.
//
// Invariant: when package http reads a frame's head, it has processed all frames before.
// It implements [net.Conn].
type conn2 struct {
	net.Conn
	server   *Server
	http     *http.Server
	handover sniff.Handover
	drained  chan struct{} // closed when the connection has drained or is closed
	closed   chan struct{}
	counted  counters.Session

	// Used by the goroutine that reads.
	in    *bufio.Reader
	ready []byte // bytes that package http may read before the rest of in
	left  int    // how many bytes of in belong to the preface or the current frame
	begun bool   // a frame has come
	last  uint32 // the client's last stream

	out   sync.Cond // for busy
	busy  bool      // a write goes on
	sent  cursor    // bytes that package http has written
	extra []byte    // frames that wait for the next place between its frames

	mu      sync.Mutex
	life    lifecycle.Life  // has one call, for package http counts the requests
	timer   lifecycle.Timer // of life
	opened  bool            // the first request has come
	writing bool            // package http writes, and the write has a deadline
	telling bool            // tell writes likewise
	closing bool            // a session has ended, and its client has closeTimeout for each write
	over    bool            // the connection was closed
	state   http.ConnState  // active while requests are being answered
	goAway  bool            // package http has written GOAWAY
	pings   lifecycle.PingLimit
}

// newLife2 returns the life of a connection of HTTP/2. It has one call, because package http counts the
// requests, and closes a connection that is idle.
func (s *Server) newLife2() lifecycle.Life {
	limits := lifecycle.LimitsOf(&s.opts.Config.Connections, true, leaveTime)
	limits.Idle, limits.Keepalive = 0, lifecycle.Keepalive{}
	life := lifecycle.Life{Limits: limits, Clock: lifecycle.System{}}
	life.CallBegins()
	return life
}

// leaveTime is how long a client may take to answer the PING that follows GOAWAY, as in gRPC.
const leaveTime = 5 * time.Second

var leavePing = []byte("nearcall")

// step does what a step of the connection's life asks for. A client is told to make no more requests in
// two steps, as gRPC's servers do: the first GOAWAY refuses none. When the client has answered the PING
// after the GOAWAY, all its earlier requests have arrived, and package http names the last one. why is
// a text for people.
func (c *conn2) step(step func(*lifecycle.Life) lifecycle.Task, why string) {
	c.mu.Lock()
	do := step(&c.life)
	if do&lifecycle.SetTimer != 0 {
		c.timer.Set(c.life.Next(), c.onTimer)
	}
	c.mu.Unlock()
	if do&lifecycle.Announce != 0 {
		c.tell(append(goAway(maxStream, noError, why), frame(framePing, leavePing)...))
	}
	if do&lifecycle.RefusePeer != 0 {
		c.shutdown()
	}
	if do&lifecycle.Expire != 0 {
		_ = c.Conn.Close()
	}
}

// onTimer does what is due in the connection's life.
func (c *conn2) onTimer() {
	c.step(func(l *lifecycle.Life) lifecycle.Task {
		c.timer.Fired()
		return l.Fire(false)
	}, "max_age")
}

// leave tells the client to make no more requests.
func (c *conn2) leave(why string) {
	c.step((*lifecycle.Life).StopAccepting, why)
}

// shutdown makes package http send GOAWAY, and close the connection when no request is being
// answered.
func (c *conn2) shutdown() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // do not wait
	_ = c.http.Shutdown(ctx)
}

func (c *conn2) Read(b []byte) (int, error) {
	if len(c.ready) == 0 && c.left == 0 {
		if err := c.nextFrame(); err != nil {
			return 0, err
		}
	}
	if len(c.ready) > 0 {
		return sniff.Take(b, &c.ready), nil
	}
	n, err := c.in.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// nextFrame looks at the next frame of the client. The error is the reason if there is no
// further frame.
func (c *conn2) nextFrame() error {
	const most = 100 * settingSize // of SETTINGS that package http accepts
	head, err := c.in.Peek(frameHead)
	if err != nil {
		return err
	}
	kind, isAck, n := head[3], head[4]&flagAck != 0, payloadSize(head)
	first := !c.begun
	c.begun, c.left = true, frameHead+n
	switch {
	case kind == frameHeaders:
		c.last = max(c.last, streamOf(head))
	case kind == frameSettings && !isAck && n <= most && n%settingSize == 0:
		whole := make([]byte, c.left)
		if _, err := io.ReadFull(c.in, whole); err != nil {
			return err
		}
		c.ready, c.left = settingsFor(whole, first), 0
	case kind == framePing && isAck && n == len(leavePing):
		whole, err := c.in.Peek(c.left)
		if err != nil {
			return err
		}
		if bytes.Equal(whole[frameHead:], leavePing) {
			c.step((*lifecycle.Life).PeerAnswers, "")
		}
	case kind == framePing && !isAck && c.pinged():
		return c.endCalmly()
	}
	return nil
}

// pinged records a PING of the client. It reports whether the client must leave, because it has
// sent too many.
func (c *conn2) pinged() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, yes := c.pings.Exceeded(&c.server.opts.Config.Connections, c.state != http.StateActive)
	return yes
}

// endCalmly ends the connection of a client that sends too many PINGs, as gRPC's servers do. The
// client has some time to read the reason.
func (c *conn2) endCalmly() error {
	logger.Infof("the server closes the connection of %v: too many pings", c.RemoteAddr())
	c.tell(goAway(c.last, enhanceYourCalm, "too_many_pings"))
	limit := time.AfterFunc(lingering, func() { _ = c.Conn.Close() })
	defer limit.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(c.in, plenty))
	return io.EOF
}

func (c *conn2) Write(b []byte) (n int, err error) {
	c.out.L.Lock()
	defer c.out.L.Unlock()
	for c.busy {
		c.out.Wait()
	}
	c.busy = true
	defer c.releaseLocked()
	if len(c.extra) > 0 {
		if n, err = c.writeLocked(b[:c.sent.toNext(b)]); err == nil {
			err = c.writeExtraLocked()
		}
	}
	if err != nil || n == len(b) {
		return n, err
	}
	more, err := c.writeLocked(b[n:])
	return n + more, err
}

// writeLocked writes b for package http. The connection is busy, and is not locked meanwhile.
func (c *conn2) writeLocked(b []byte) (int, error) {
	after := c.sent
	speaks, leaves := after.move(b)
	if speaks { // before the client can answer with a PING
		c.mu.Lock()
		c.pings.Spoke()
		c.mu.Unlock()
	}
	c.out.L.Unlock()
	n, err := c.Conn.Write(b)
	c.out.L.Lock()
	if n < len(b) {
		after = c.sent
		_, leaves = after.move(b[:n])
	}
	if c.sent = after; leaves {
		c.mu.Lock()
		c.goAway = true
		c.checkDrainedLocked()
		c.mu.Unlock()
	}
	return n, err
}

// writeExtraLocked writes the extra frames, if what was written ends with a frame. The connection
// is busy, and is not locked meanwhile.
func (c *conn2) writeExtraLocked() (err error) {
	for err == nil && len(c.extra) > 0 && c.sent.between() {
		extra := c.extra
		c.extra = nil
		c.out.L.Unlock()
		if _, err = c.Conn.Write(extra); err != nil {
			_ = c.Conn.Close()
		}
		c.out.L.Lock()
	}
	return err
}

// releaseLocked ends a write. It leaves no frame that could be written.
func (c *conn2) releaseLocked() {
	_ = c.writeExtraLocked()
	c.busy = false
	c.out.Signal()
}

// tell writes frames of the connection between those of package http. If package http is writing,
// or has not written a frame to its end, they are written later.
func (c *conn2) tell(frames []byte) {
	c.out.L.Lock()
	defer c.out.L.Unlock()
	c.extra = append(c.extra, frames...)
	if c.busy || !c.sent.between() {
		return
	}
	c.busy = true
	c.setTelling(true)
	c.releaseLocked()
	c.setTelling(false)
}

func (c *conn2) setTelling(telling bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.telling = telling
	_ = c.limitWriteLocked()
}

// RemoteAddr implements [net.Conn]. Package http needs an address.
func (c *conn2) RemoteAddr() net.Addr {
	if a := c.Conn.RemoteAddr(); a != nil {
		return a
	}
	return remote("")
}

// SetReadDeadline implements [net.Conn]. Before the first request the deadline that the listener
// has set stays, and after it there is none.
func (c *conn2) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements [net.Conn]. Package http calls it before and after each write, with
// the time at which the write fails if the client has taken nothing. It closes the connection then.
func (c *conn2) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = !t.IsZero()
	return c.limitWriteLocked()
}

// limitWriteLocked sets the deadline of the write that goes on, if there is one.
func (c *conn2) limitWriteLocked() error {
	switch {
	case !c.opened:
		return nil // keep the deadline that the listener has set
	case !c.writing && !c.telling:
		return c.Conn.SetWriteDeadline(time.Time{})
	case c.closing:
		return c.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	}
	return c.Conn.SetWriteDeadline(time.Now().Add(stall))
}

// open removes the deadline that the listener has set, because a request has come.
func (c *conn2) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opened {
		c.opened = true
		c.counted.Begin(false, counters.HTTP)
		_ = c.Conn.SetReadDeadline(time.Time{})
		_ = c.limitWriteLocked()
	}
}

// shortenWrites shortens the time that the client has for each write.
func (c *conn2) shortenWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		c.closing = true
		_ = c.limitWriteLocked()
	}
}

func (c *conn2) Close() error {
	c.mu.Lock()
	over := c.over
	c.over = true
	c.life.Closes()
	c.timer.Stop()
	c.mu.Unlock()
	if over {
		return nil
	}
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	c.counted.End()
	err := c.Conn.Close()
	c.changed(http.StateClosed)
	close(c.closed)
	return err
}
