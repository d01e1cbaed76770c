// Package web carries calls over HTTP/1.1 and HTTP/2, by the protocols that browsers and ordinary HTTP
// clients speak: Connect, with binary messages or JSON, and gRPC-Web. It only accepts calls: each
// connection of HTTP/1.1, and each request of HTTP/2, is a [link.Session], each request a [link.Stream].
package web

import (
	"cmp"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/keepalive"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const (
	defaultWindow = 64 << 10         // of each direction of a call, in bytes
	defaultHeader = 64 << 10         // of the header of a request, in bytes
	maxHeader     = 1 << 20          // the largest header that an option allows, in bytes
	headerTime    = 20 * time.Second // for a header that arrives in pieces
	defaultIdle   = 2 * time.Minute  // how long a connection may wait for its next request
)

// Options set up a server. If a field's comment does not say otherwise, its zero value selects
// the default.
type Options struct {
	// Method describes a method, by its full name. It must be set.
	Method func(name string) link.Method

	// Codec reports whether there is a codec for a content-subtype. It must be set.
	Codec func(subtype string) bool

	// Compressors returns the names of the compressors that requests may use.
	Compressors func() []string

	// Origins are the web origins whose pages may make calls, as scheme://host[:port]; "*" stands
	// for all. By default only pages of this server's host may.
	Origins []string

	// GRPC answers a request of gRPC over HTTP/2. It reports false if the server was stopped. It is
	// nil if the server takes no ordinary gRPC clients.
	GRPC func(http.ResponseWriter, *http.Request, *link.Peer) bool

	// OnlyGRPC says that the program has set options that GRPC does not know, such as a tap handle.
	// So a call of gRPC is refused over a connection that TakeHTTP2 got.
	OnlyGRPC bool

	// Begin is called for each WebSocket and for each request of HTTP/2 or to another HTTP server.
	// It reports false if the server was stopped. It must be set.
	Begin func() bool

	Sockets        sock.Options // of WebSockets
	OnlyWebSockets bool         // refuses requests of Connect and gRPC-Web

	Window         int                        // of each direction of a call, in bytes
	MaxHeaderBytes int                        // the largest header of a request, in bytes
	MaxStreams     uint32                     // concurrent requests of a connection; 0 for no limit
	Keepalive      keepalive.ServerParameters // for the ages; MaxConnectionIdle is 2 min by default
}

// A Server serves the connections that it is given. All its goroutines belong to connections and
// end with them.
type Server struct {
	opts      Options
	origins   origins
	http      http.Server   // of connections of HTTP/1.1
	maxFields int           // of a request's header
	idle      time.Duration // how long a connection may wait for its next request
	warn      func()        // logs, once, that another HTTP server is not safe

	mu    sync.Mutex
	conns map[*conn2]struct{} // that are open
	ended bool                // no connection is added
}

// New returns a server. The error says which of the origins is invalid.
func New(o Options) (*Server, error) {
	allowed, err := parseOrigins(o.Origins)
	if err != nil {
		return nil, err
	}
	o.Window = max(cmp.Or(o.Window, defaultWindow), 1)
	s := &Server{opts: o, origins: allowed, conns: make(map[*conn2]struct{}), idle: cmp.Or(max(o.Keepalive.MaxConnectionIdle, 0), defaultIdle)}
	s.http = http.Server{
		Handler:                      http.HandlerFunc(s.serve),
		ReadHeaderTimeout:            headerTime,
		MaxHeaderBytes:               min(cmp.Or(o.MaxHeaderBytes, defaultHeader), maxHeader),
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(errorLog{}, "", 0),
		Protocols:                    new(http.Protocols),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			c.(*conn).changed(state)
		},
	}
	s.maxFields = maxFields(s.http.MaxHeaderBytes)
	s.warn = sync.OnceFunc(s.logUnsafe)
	s.http.Protocols.SetHTTP1(true)
	return s, nil
}

// Take serves a connection and owns it from then on. It returns at once.
func (s *Server) Take(h sock.Handover) {
	c := newConn(s, h)
	a := c.session.open(h.Accept)
	if a == nil || !c.start() {
		_ = h.Conn.Close()
		if a != nil {
			a.Gone()
		}
		return
	}
	// Serve starts the goroutine of the connection, and returns the error of the second Accept.
	_ = s.http.Serve(&single{conn: c})
}

// connKey is the context key of a request's *conn.
type connKey struct{}

// single is a listener with one connection. http.Server takes connections only from a listener.
type single struct{ conn net.Conn }

func (l *single) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	return nil, io.EOF
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return nil }

var logger = grpclog.Component("nearcall")

// errorLog passes on the log of package http. Its lines about HTTP/2 say that clients break
// rules, which is no error of the server.
type errorLog struct{}

func (errorLog) Write(b []byte) (int, error) {
	text := strings.TrimSpace(string(b))
	for _, start := range []string{"http2: server", "http2: received", "timeout waiting"} {
		if strings.HasPrefix(text, start) {
			logger.Infof("package http closes a connection: %q", text)
			return len(b), nil
		}
	}
	logger.Error(text)
	return len(b), nil
}
