// Package web carries calls over HTTP/1.1 and HTTP/2, by the protocols that browsers and ordinary HTTP
// clients speak: Connect, with binary messages or JSON, and gRPC-Web. It only accepts calls: each
// connection of HTTP/1.1, and each request of HTTP/2, is a [link.Session], each request a [link.Stream].
package web

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

const (
	maxHeader  = 1 << 20          // the largest header that an option allows, in bytes
	headerTime = 20 * time.Second // for a header that arrives in pieces
)

// Options set up a server.
type Options struct {
	Config  *options.Server
	Sockets sock.Options // of WebSockets

	// Method describes a method, by its full name. It must be set.
	Method func(name string) link.Method

	// Codec reports whether there is a codec for a content-subtype. It must be set.
	Codec func(subtype string) bool

	// Compressors returns the names of the compressors that requests may use.
	Compressors func() []string

	// GRPC answers a request of gRPC over HTTP/2. It reports false if the server was stopped. It is
	// nil if the server takes no ordinary gRPC clients.
	GRPC func(http.ResponseWriter, *http.Request, *link.Peer) bool

	// Begin is called for each WebSocket and for each request of HTTP/2 or to another HTTP server.
	// It reports false if the server was stopped. It must be set.
	Begin func() bool
}

// A Server serves the connections that it is given. All its goroutines belong to connections and
// end with them.
type Server struct {
	opts      Options
	origins   origins
	http      http.Server // of connections of HTTP/1.1
	maxFields int         // of a request's header
	warn      func()      // logs, once, that another HTTP server is not safe

	mu    sync.Mutex
	conns map[*conn2]struct{} // that are open
	ended bool                // no connection is added
}

// CheckOrigins returns an error that says which of a server's origins is invalid.
func CheckOrigins(all []string) error {
	_, err := parseOrigins(all)
	return err
}

// New returns a server. [CheckOrigins] has checked its origins.
func New(o Options) *Server {
	allowed, err := parseOrigins(o.Config.PageOrigins)
	if err != nil {
		panic("nearcall: " + err.Error())
	}
	s := &Server{opts: o, origins: allowed, conns: make(map[*conn2]struct{})}
	s.http = http.Server{
		Handler:                      http.HandlerFunc(s.serve),
		ReadHeaderTimeout:            headerTime,
		MaxHeaderBytes:               min(o.Config.MaxHTTPHeader, maxHeader),
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
	return s
}

// window returns the window of each direction of a call, in bytes.
func (s *Server) window() int { return s.opts.Config.LocalWindow }

// idle returns how long a connection may wait for its next request.
func (s *Server) idle() time.Duration { return s.opts.Config.HTTPIdle }

// Take serves a connection and owns it from then on. It returns at once.
func (s *Server) Take(h sniff.Handover) {
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
