package http1

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// Package http serves connections of HTTP/2, and each request is a session. All connections belong
// to one http.Server, because only that can send GOAWAY.

const stopping = "the server is stopping"

// newHTTP2 returns the http.Server of connections of HTTP/2.
func (s *Server) newHTTP2() *http.Server {
	k := s.opts.Keepalive
	streams := int(min(s.opts.MaxStreams, 1<<30))
	if streams == 0 {
		streams = 1 << 30 // package http takes 0 as its default limit
	}
	h := &http.Server{
		Handler:                      http.HandlerFunc(s.serveHTTP2),
		MaxHeaderBytes:               s.http.MaxHeaderBytes,
		IdleTimeout:                  s.idle,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     s.http.ErrorLog,
		ConnContext:                  s.http.ConnContext,
		Protocols:                    new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      streams,
			MaxReceiveBufferPerStream: max(s.opts.Window, 64<<10),
			SendPingTimeout:           max(cmp.Or(k.Time, 2*time.Hour), time.Second), // as in gRPC
			PingTimeout:               cmp.Or(k.Timeout, 20*time.Second),
			WriteByteTimeout:          stall,
			MaxReadFrameSize:          16 << 10, // the least: a frame is kept until all of it has come
		},
	}
	h.Protocols.SetUnencryptedHTTP2(true) // Take gets connections that are decrypted
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*conn2); ok {
			c.drain.changed(state)
		}
	}
	return h
}

// TakeHTTP2 serves a connection of HTTP/2 and owns it from then on. It returns at once.
func (s *Server) TakeHTTP2(h sock.Handover) {
	in := bufio.NewReader(io.MultiReader(bytes.NewReader(h.First), h.Conn))
	h.First = nil // conn2 keeps h
	c := &conn2{Conn: h.Conn, in: in, handover: h, born: time.Now(), grace: s.opts.Keepalive.MaxConnectionAgeGrace, server: s}
	c.drain.over = make(chan struct{})
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if age := s.opts.Keepalive.MaxConnectionAge; age > 0 {
		c.most = durations.Age(age)
		c.timer = time.AfterFunc(c.most, c.aged)
	}
	if err := s.http2.Serve(&single{conn: c}); errors.Is(err, http.ErrServerClosed) {
		sock.RefuseRequests(c, stopping)
	}
}

// A conn2 is the connection of HTTP/2 that package http uses.
//
// Package http can tell the client of one connection to make no more requests only with an answer.
// So the first answer after the connection's largest age does, and from then on the client has the
// grace. If calls are running at that age and no other answer begins, the grace begins at that age.
type conn2 struct {
	net.Conn
	server   *Server
	in       *bufio.Reader
	handover sock.Handover
	drain    draining
	born     time.Time
	most     time.Duration // its largest age; 0 for any
	grace    time.Duration // 0 for any

	mu      sync.Mutex
	timer   *time.Timer // calls aged, and then ends the grace; nil if the connection may have any age
	running int         // requests that are being answered
	told    bool        // an answer has told the client to make no more requests
	opened  bool        // the first request has come
	writing bool        // package http writes, and the write has a deadline
	hasty   bool        // a session has ended, and its client has farewell for each write
}

// old reports whether the connection has reached its largest age, and its client must be told with
// the next answer.
func (c *conn2) old() bool {
	if c.most == 0 || time.Since(c.born) < c.most {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.told {
		c.told = true
		c.beginGraceLocked()
	}
	return true
}

// aged is called at the connection's largest age.
func (c *conn2) aged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 && !c.told {
		c.beginGraceLocked()
	}
}

// beginGraceLocked closes the connection after the grace.
func (c *conn2) beginGraceLocked() {
	c.timer.Stop()
	if c.grace != 0 {
		c.timer = time.AfterFunc(c.grace, func() { _ = c.Conn.Close() })
	}
}

// answers adds n to the number of requests that are being answered.
func (c *conn2) answers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += n
}

// Read implements [net.Conn].
func (c *conn2) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write implements [net.Conn].
func (c *conn2) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.drain.wrote(b[:n])
	return n, err
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
	return c.limitWrite()
}

// limitWrite sets the deadline of the write that goes on, if there is one. mu is held.
func (c *conn2) limitWrite() error {
	switch {
	case !c.opened:
		return nil // keep the deadline that the listener has set
	case !c.writing:
		return c.Conn.SetWriteDeadline(time.Time{})
	case c.hasty:
		return c.Conn.SetWriteDeadline(time.Now().Add(farewell))
	}
	return c.Conn.SetWriteDeadline(time.Now().Add(stall))
}

// open removes the deadline that the listener has set, because a request has come.
func (c *conn2) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opened {
		c.opened = true
		_ = c.Conn.SetReadDeadline(time.Time{})
		_ = c.limitWrite()
	}
}

// hurry shortens the time that the client has for each write.
func (c *conn2) hurry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasty {
		c.hasty = true
		_ = c.limitWrite()
	}
}

// Close implements [net.Conn].
func (c *conn2) Close() error {
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	c.drain.changed(http.StateClosed)
	return c.Conn.Close()
}

// serveHTTP2 answers a request of HTTP/2 over a connection that TakeHTTP2 got.
func (s *Server) serveHTTP2(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn2)
	c.open()
	c.answers(1)
	defer c.answers(-1)
	h := c.handover
	setTLS(r, h.Auth)
	peer := link.Peer{Addr: h.Conn.RemoteAddr(), LocalAddr: h.Conn.LocalAddr(), AuthInfo: h.Auth}
	e := s.newExchange(w, r, peer, h.Accept)
	e.conn = c
	s.serveExchange(e, r, h)
}

// setTLS sets the TLS field of a request over a connection that was decrypted.
func setTLS(r *http.Request, auth credentials.AuthInfo) {
	if info, ok := auth.(credentials.TLSInfo); ok {
		r.TLS = &info.State
	}
}

// ServeHTTP answers a request to another HTTP server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, accept func(link.Session) link.Acceptor) {
	deadline := time.Now().Add(cmp.Or(s.opts.Sockets.Handshake, mux.DefaultHandshake)) // of a WebSocket
	r = r.WithContext(r.Context())                                                     // answer changes it
	e := s.newExchange(w, r, peerOf(r), accept)
	if site, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		e.timed = site.WriteTimeout > 0
	}
	s.serveExchange(e, r, sock.Handover{Deadline: deadline, Accept: accept})
}

func (s *Server) serveExchange(e *exchange, r *http.Request, h sock.Handover) {
	defer e.end()
	if !s.opts.Begin() {
		refuse(e, e, r, http.StatusServiceUnavailable, stopping)
		return
	}
	s.answer(e, r, e, h)
}

// answerGRPC answers a request of gRPC.
func (s *Server) answerGRPC(w http.ResponseWriter, r *http.Request, c carrier) {
	w.Header().Del("X-Content-Type-Options") // clients would find it in the header's metadata
	why := refused{codes.Unimplemented, "this is a nearcall server, which does not take ordinary gRPC clients: dial it with github.com/nearcall/nearcall, or let its OtherClients have GRPCClients"}
	e, ok := c.(*exchange)
	switch {
	case !ok || s.opts.GRPC == nil:
	case e.conn != nil && s.opts.OnlyGRPC:
		why = refused{codes.Unimplemented, "this server's GRPCServerOptions apply to connections of gRPC: make the call over a connection whose first request is of gRPC"}
	case !canFlush(w):
		why = refused{codes.Internal, noFlush}
	case s.opts.GRPC(&grpcAnswer{ResponseWriter: e.ResponseWriter, exchange: e}, undecoded(r), &e.peer):
		return
	default:
		why = refused{codes.Unavailable, stopping}
	}
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(int(why.code)))
	h.Set("Grpc-Message", why.text)
	leave(c, w, r)
	w.WriteHeader(http.StatusOK)
}

// refused is why a call of gRPC is refused.
type refused struct {
	code codes.Code
	text string
}

const noFlush = "the HTTP server's ResponseWriter cannot flush: middleware that wraps it needs a method Unwrap"

// canFlush reports whether w or what it wraps can flush.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case *exchange:
			w = t.ResponseWriter
		case http.Flusher, interface{ FlushError() error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// undecoded returns a copy of r whose URL.Path is the path as the client has sent it. grpc-go takes
// that for the method, and gets the same from connections that it serves: see [pathOf].
func undecoded(r *http.Request) *http.Request {
	raw := url.URL{Path: pathOf(r)}
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		raw.Path += "?" + r.URL.RawQuery
	}
	r = r.WithContext(r.Context())
	r.URL = &raw
	return r
}

// A grpcAnswer is the ResponseWriter that grpc-go writes a call's answer to. It lets grpc-go flush
// what middleware has wrapped, and tells the client to leave a connection that is too old.
type grpcAnswer struct {
	http.ResponseWriter
	exchange *exchange
	begun    bool // the header was written
}

func (a *grpcAnswer) begin() {
	if !a.begun && a.exchange.leaves() {
		a.Header().Set("Connection", "close")
	}
	a.begun = true
}

// WriteHeader implements [http.ResponseWriter].
func (a *grpcAnswer) WriteHeader(code int) {
	a.begin()
	a.ResponseWriter.WriteHeader(code)
}

// Write implements [http.ResponseWriter].
func (a *grpcAnswer) Write(b []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(b)
}

// Flush implements [http.Flusher].
func (a *grpcAnswer) Flush() {
	a.begin()
	_ = a.exchange.control.Flush()
}

// SetWriteDeadline lets [http.ResponseController] set it.
func (a *grpcAnswer) SetWriteDeadline(t time.Time) error {
	return a.exchange.control.SetWriteDeadline(t)
}

// leaving is the body of a request of HTTP/2. If it cannot be read to its end, the client has
// reset its stream or has left, unless middleware limits bodies.
type leaving struct{ io.ReadCloser }

// Read implements [io.Reader].
func (b leaving) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if large := (*http.MaxBytesError)(nil); err != nil && err != io.EOF && !errors.As(err, &large) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close closes the HTTP/2 connections. All calls have ended. Clients have some time to take the last
// answers, more if the server stops gracefully.
func (s *Server) Close(gracefully bool) {
	patience := lingering
	if gracefully {
		patience = farewell
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.http2.Shutdown(ctx)
	_ = s.http2.Close()
}
