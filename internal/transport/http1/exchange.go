package http1

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/nearcall/nearcall/internal/link"
)

// A callSession is what a call needs of the session of its request: of a connection of HTTP/1.1
// that the listener has accepted, which is a [session], or of a request of HTTP/2 or to another
// HTTP server, which is an [exchange].
type callSession interface {
	// accepted returns the acceptor of the calls; nil if the server is stopping.
	accepted() link.Acceptor

	// serves sets the current call, or nil after it. It returns the reason if the session has
	// ended.
	serves(*stream) error

	leaveBodyUnread()     // the rest of the request will not be read
	leaves() bool         // the answer must say that the connection is closed after it
	limitReads(time.Time) // makes reads of the request end at that time, if they have not ended
	limitWrites()         // makes writes of the answer fail once the client takes nothing of it
	endReads()            // ends the reads of a request whose body is not needed
	localAddr() net.Addr  // where the request has arrived
	window() int          // of each direction of a call, in bytes
}

// An exchange is one request and its answer: the [link.Session] of one call. Deadlines go through
// package http, which sets them for the connection of HTTP/1.1 and for the stream of HTTP/2.
// It implements [callSession] and [http.ResponseWriter].
type exchange struct {
	http.ResponseWriter
	server  *Server
	control *http.ResponseController
	major   int    // of the version of HTTP
	conn    *conn2 // nil if it is another HTTP server's
	timed   bool   // that server limits how long the answer may take
	socket  bool   // the request must be for a WebSocket; otherwise it must not be
	accept  func(link.Session) link.Acceptor
	peer    link.Peer
	done    chan struct{}
	ended   chan struct{}

	mu          sync.Mutex
	acceptor    link.Acceptor // nil until accepted
	stream      *stream       // nil before and after the call
	draining    bool
	bodyUnread  bool  // the rest of the request will not be read
	reason      error // why the session has ended; nil if it has not
	readsClosed bool  // reads have ended
	limited     bool  // writes have a deadline
	over        bool  // the request was answered: package http must not be used
}

func (s *Server) newExchange(w http.ResponseWriter, r *http.Request, peer link.Peer, accept func(link.Session) link.Acceptor) *exchange {
	return &exchange{
		ResponseWriter: w, server: s, control: http.NewResponseController(w), major: r.ProtoMajor, accept: accept, peer: peer,
		done: make(chan struct{}), ended: make(chan struct{}),
	}
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
		p.Addr = remote(r.RemoteAddr) // what middleware has set
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

func (e *exchange) accepted() link.Acceptor {
	a := e.accept(e)
	e.mu.Lock()
	e.acceptor = a
	reason := e.reason
	e.mu.Unlock()
	if a != nil && reason != nil { // it was closed before accept returned
		a.Closed(reason)
	}
	return a
}

func (e *exchange) Invoke(context.Context, *link.UnaryCall) error { return link.ErrNoCall }

func (e *exchange) NewStream(context.Context, *link.CallHeader) (link.Stream, error) {
	return nil, errOneWay
}

func (e *exchange) Done() <-chan struct{}  { return e.done }
func (e *exchange) Ended() <-chan struct{} { return e.ended }
func (e *exchange) Peer() *link.Peer       { return &e.peer }

// Drain implements [link.Session]. As over a connection, a request whose body is still arriving
// becomes a call at once.
func (e *exchange) Drain() <-chan struct{} {
	e.mu.Lock()
	e.drain()
	st := e.stream
	e.mu.Unlock()
	if st != nil {
		st.begin()
		st.limitBody()
	}
	return e.done
}

// drain closes done. mu is held.
func (e *exchange) drain() {
	if !e.draining {
		e.draining = true
		close(e.done)
	}
}

func (e *exchange) Retire() { e.Drain() }

// Written implements [link.Session]. It is not used, because the peer never serves calls.
func (e *exchange) Written() <-chan struct{} { return e.ended }

func (e *exchange) Close(reason error) error {
	e.mu.Lock()
	if e.reason != nil {
		e.mu.Unlock()
		return nil
	}
	e.drain()
	e.reason = reason
	a, st := e.acceptor, e.stream
	e.mu.Unlock()
	if st != nil {
		st.Abort(reason)
	}
	close(e.ended)
	if a != nil {
		a.Closed(reason)
	}
	e.limitWrites()
	e.limitReads(time.Now().Add(closeTimeout))
	return nil
}

var errAnswered = errors.New("the request was answered")

// end ends the session after the answer was written. It waits for the handler, as package http
// limits the requests of a connection that it serves at a time: otherwise a client could make
// calls and reset them faster than handlers return.
func (e *exchange) end() {
	e.mu.Lock()
	e.over, e.stream = true, nil
	a := e.acceptor
	e.mu.Unlock()
	if a == nil {
		return
	}
	_ = e.Close(errAnswered)
	a.Gone()
	if a, ok := a.(interface{ Idle() <-chan struct{} }); ok {
		<-a.Idle()
	}
}

func (e *exchange) serves(st *stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stream = st
	return e.reason
}

func (e *exchange) leaveBodyUnread() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bodyUnread = true
}

// leaves implements [callSession]. Over HTTP/2 package http makes GOAWAY of the answer's field, and
// needs none for a body that is not read.
func (e *exchange) leaves() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.draining || e.bodyUnread && e.major < 2
}

func (e *exchange) localAddr() net.Addr { return e.peer.LocalAddr }
func (e *exchange) window() int         { return e.server.opts.Window }

func (e *exchange) limitReads(t time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.readsClosed && !e.over {
		_ = e.control.SetReadDeadline(t)
	}
}

func (e *exchange) endReads() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bodyUnread, e.readsClosed = true, true
	if !e.over {
		_ = e.control.SetReadDeadline(time.Now())
	}
}

// limitWrites implements [callSession]: a client has stall for each piece, or closeTimeout if the
// session has ended. The WriteTimeout of another HTTP server stays as it is. The deadline of a
// stream does not end a write that waits for its connection: that has a limit of its own, which
// ends the connection.
func (e *exchange) limitWrites() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.timed && e.reason == nil {
		return
	}
	e.limited = true
	patience := stall
	if e.reason != nil {
		patience = closeTimeout
		if e.conn != nil {
			e.conn.shortenWrites()
		}
	}
	_ = e.control.SetWriteDeadline(time.Now().Add(patience))
}

func (e *exchange) Write(b []byte) (int, error) {
	n, err := e.ResponseWriter.Write(b)
	e.mu.Lock()
	limited := e.limited
	e.mu.Unlock()
	if err == nil && limited {
		e.limitWrites()
	}
	return n, err
}

// Unwrap lets package http find the methods of the ResponseWriter.
func (e *exchange) Unwrap() http.ResponseWriter { return e.ResponseWriter }
