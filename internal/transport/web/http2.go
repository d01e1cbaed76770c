package web

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/sniff"
)

// Package http serves connections of HTTP/2, and each request is a session.

const stopping = "the server is stopping"

// newHTTP2 returns the http.Server of a connection of HTTP/2. Each connection has its own,
// because package http can only ask all clients of a server to leave.
func (s *Server) newHTTP2() *http.Server {
	c := s.opts.Config
	streams := int(min(c.MaxStreams, 1<<30))
	if streams == 0 {
		streams = 1 << 30 // package http takes 0 as its default limit
	}
	h := &http.Server{
		Handler:                      http.HandlerFunc(s.serveHTTP2),
		MaxHeaderBytes:               s.http.MaxHeaderBytes,
		IdleTimeout:                  s.idle(),
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     s.http.ErrorLog,
		ConnContext:                  s.http.ConnContext,
		Protocols:                    new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      streams,
			MaxReceiveBufferPerStream: s.window(),
			SendPingTimeout:           c.Pings.Every,
			PingTimeout:               c.Pings.Timeout,
			WriteByteTimeout:          stall,
			MaxReadFrameSize:          16 << 10, // the least: a frame is kept until all of it has arrived
			MaxEncoderHeaderTableSize: 1,        // the least: see settingsFor
		},
	}
	h.Protocols.SetUnencryptedHTTP2(true) // the connections that Take gets are decrypted
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if c, ok := c.(*conn2); ok {
			c.changed(state)
		}
	}
	return h
}

// serveHTTP2 answers a request of HTTP/2 over a connection that TakeHTTP2 got.
func (s *Server) serveHTTP2(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn2)
	c.open()
	h := c.handover
	setTLS(r, h.Auth)
	peer := link.Peer{Addr: h.Conn.RemoteAddr(), LocalAddr: h.Conn.LocalAddr(), AuthInfo: h.Auth}
	e := s.newExchange(w, r, peer)
	e.conn = c
	s.serveExchange(e, r, h)
}

// setTLS sets the TLS field of a request over a connection that was decrypted.
func setTLS(r *http.Request, auth credentials.AuthInfo) {
	if info, ok := auth.(credentials.TLSInfo); ok {
		r.TLS = &info.State
	}
}

// ServeHTTP answers a request to another HTTP server. It refuses requests for a
// WebSocket.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, accept func(link.Session) link.Acceptor) {
	s.serveForeign(w, r, accept, false)
}

// ServeWebSocket answers a request for a WebSocket to another HTTP server.
func (s *Server) ServeWebSocket(w http.ResponseWriter, r *http.Request, accept func(link.Session) link.Acceptor) {
	s.serveForeign(w, r, accept, true)
}

func (s *Server) serveForeign(w http.ResponseWriter, r *http.Request, accept func(link.Session) link.Acceptor, socket bool) {
	deadline := s.opts.Sockets.Deadline() // of a WebSocket
	r = r.WithContext(r.Context())        // answer changes it
	e := s.newExchange(w, r, peerOf(r))
	e.socket = socket
	if site, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok {
		e.timed = site.WriteTimeout > 0
		if r.ProtoMajor == 2 && !isSafe(site) {
			s.warn()
			panic(http.ErrAbortHandler)
		}
	}
	s.serveExchange(e, r, sniff.Handover{Deadline: deadline, Accept: accept})
}

// isSafe reports whether site is safe from clients of HTTP/2 that could end the process: see
// settingsFor. An entry of the encoder's table takes 32 bytes at least. If the table has no room
// for an entry, package http changes it without harm. On an unsafe server any answer with a
// header is dangerous, so requests get none.
func isSafe(site *http.Server) bool {
	const entry = 32
	return site.HTTP2 != nil && site.HTTP2.MaxEncoderHeaderTableSize > 0 && site.HTTP2.MaxEncoderHeaderTableSize < entry
}

func (s *Server) logUnsafe() {
	logger.Error("ServeHTTP refuses requests of HTTP/2: any client could end this process, because package http compresses headers with a table that the client changes meanwhile. " +
		"Set the field HTTP2 of the http.Server to &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}")
}

func (s *Server) serveExchange(e *exchange, r *http.Request, h sniff.Handover) {
	defer e.end()
	if !s.opts.Begin() {
		refuse(e.session, e, r, http.StatusServiceUnavailable, stopping)
		return
	}
	s.answer(e, r, e.session, h)
}

// answerGRPC answers a request of gRPC.
func (s *Server) answerGRPC(w http.ResponseWriter, r *http.Request, c *session) {
	w.Header().Del("X-Content-Type-Options") // clients would find it in the header's metadata
	why := refused{codes.Unimplemented, "this is a nearcall server, which does not take ordinary gRPC clients: dial it with github.com/nearcall/nearcall, or let its OtherClients have GRPCClients"}
	e := c.exchange
	switch {
	case s.opts.GRPC == nil:
	case e.conn != nil && s.opts.Config.HasGRPCOptions():
		why = refused{codes.Unimplemented, "this server's GRPCServerOptions apply to connections of gRPC: make the call over a connection whose first request is of gRPC"}
	case !canFlush(w):
		why = refused{codes.Internal, noFlush}
	case s.opts.GRPC(e, undecoded(r), &c.peer):
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

// refused is the reason for refusing a call of gRPC.
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
// the path for the method, as on its own connections: see [pathOf].
func undecoded(r *http.Request) *http.Request {
	raw := url.URL{Path: pathOf(r)}
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		raw.Path += "?" + r.URL.RawQuery
	}
	r = r.WithContext(r.Context())
	r.URL = &raw
	return r
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

// An exchange is one request of HTTP/2, or to another HTTP server, and its answer. Deadlines go
// through package http, which sets them for the connection of HTTP/1.1 and for the stream of
// HTTP/2. It implements [http.ResponseWriter].
type exchange struct {
	http.ResponseWriter
	session *session
	control *http.ResponseController
	major   int    // of the version of HTTP
	conn    *conn2 // nil if it is another HTTP server's
	timed   bool   // that server limits how long the answer may take
	socket  bool   // the request must be for a WebSocket; otherwise it must not be
	limited bool   // writes have a deadline; guarded by session.mu
}

func (s *Server) newExchange(w http.ResponseWriter, r *http.Request, peer link.Peer) *exchange {
	e := &exchange{ResponseWriter: w, control: http.NewResponseController(w), major: r.ProtoMajor}
	e.session = &session{server: s, exchange: e, reads: e.control, peer: peer, life: s.newLife(0), done: make(chan struct{}), ended: make(chan struct{})}
	e.session.life.Start(true)
	e.session.life.CallBegins()
	return e
}

// peerOf returns the peer of a request to another HTTP server.
func peerOf(r *http.Request) link.Peer {
	p := link.Peer{AuthInfo: link.Insecure}
	p.LocalAddr, _ = r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	local := p.LocalAddr != nil && p.LocalAddr.Network() == "unix"
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		p.Addr = net.TCPAddrFromAddrPort(a)
	} else if local {
		p.Addr = &net.UnixAddr{Net: "unix", Name: r.RemoteAddr}
	} else {
		p.Addr = remote(r.RemoteAddr) // the header that middleware has set
	}
	switch {
	case r.TLS != nil:
		p.AuthInfo = link.TLSInfo(*r.TLS)
	case local:
		p.AuthInfo = link.Private
	}
	return p
}

// A remote is the address of a client in a form that only its HTTP server knows.
type remote string

func (remote) Network() string  { return "tcp" }
func (a remote) String() string { return string(a) }

var errAnswered = errors.New("the request was answered")

// end ends the session after the answer was written. It waits for the handler, so that package
// http's limit of concurrent requests counts it: otherwise a client could make and reset calls
// faster than handlers return.
func (e *exchange) end() {
	s := e.session
	s.mu.Lock()
	s.over, s.stream = true, nil
	a := s.acceptor
	s.mu.Unlock()
	if a == nil {
		return
	}
	_ = s.Close(errAnswered)
	a.Gone()
	if a, ok := a.(interface{ Idle() <-chan struct{} }); ok {
		<-a.Idle()
	}
}

// limitWritesLocked gives the client stall for each piece, or closeTimeout if the session has ended.
// The WriteTimeout of another HTTP server stays as it is. The deadline of a stream does not end a
// write that waits for its connection: that has a limit of its own, which ends the connection.
func (e *exchange) limitWritesLocked() {
	patience := stall
	if e.session.life.Reason() != nil {
		patience = closeTimeout
		if e.conn != nil {
			e.conn.shortenWrites()
		}
	} else if e.timed {
		return
	}
	e.limited = true
	_ = e.control.SetWriteDeadline(time.Now().Add(patience))
}

func (e *exchange) Write(b []byte) (int, error) {
	n, err := e.ResponseWriter.Write(b)
	e.session.mu.Lock()
	limited := e.limited
	e.session.mu.Unlock()
	if err == nil && limited {
		e.session.limitWrites()
	}
	return n, err
}

// Unwrap lets package http find the methods of the ResponseWriter.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Flush implements [http.Flusher], which grpc-go needs. It flushes what middleware has wrapped.
func (e *exchange) Flush() { _ = e.control.Flush() }

// FlushError lets [http.ResponseController] see the error.
func (e *exchange) FlushError() error { return e.control.Flush() }
