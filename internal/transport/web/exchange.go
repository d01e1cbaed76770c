package web

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

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
