package nearcall

import (
	"context"
	"net/http"

	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/web"
)

// WebOrigins lets web pages of other origins make calls. An origin is scheme://host or
// scheme://host:port, as in "https://shop.example" or "http://localhost:5173". "*" stands for all
// origins. With "*", browsers send cookies only when they open a WebSocket, and handlers do not
// get those cookies: see [WebSocketRequest]. Without the option a page can make calls only to the
// host that it comes from. WebOrigins panics if an origin has another form.
//
// It has no effect on clients that are not browsers: any program can send any Origin.
//
// If browsers reach the server by a name, through a proxy on the same machine that connects over
// the loopback interface, WebOrigins must list the origin with that name as well: see
// https://github.com/nearcall/nearcall/blob/main/docs/security.md#web-pages.
func WebOrigins(origins ...string) ServerOption {
	if err := web.CheckOrigins(origins); err != nil {
		panic("nearcall: WebOrigins: " + err.Error())
	}
	return options.SetServer(func(o *options.Server) { o.PageOrigins = append(o.PageOrigins, origins...) })
}

// webServer returns the server for HTTP clients.
func (s *Server) webServer() *web.Server {
	cfg := web.Options{
		Config: s.opts, Sockets: s.sockets, Method: s.core.Method, Codec: s.core.HasCodec, Compressors: server.Compressors, Begin: s.takesCalls,
	}
	if s.opts.TakesGRPC {
		cfg.GRPC = s.grpc.ServeHTTP
	}
	return web.New(cfg)
}

// WebSocketRequest returns the request that opened the WebSocket over which a handler's call
// came, with its URL, Host, Header (and so the cookies and the Origin), RemoteAddr and TLS. If
// only "*" of [WebOrigins] allows the Origin, Cookie and Authorization are missing. Each call of
// WebSocketRequest makes a copy, because the server keeps the header in a form that takes less
// memory. All copies share TLS, which must not be changed.
//
// ctx is the context of a handler or a server interceptor, or one derived from it. For any other
// context, and for a call over another transport, ok is false. For a call over a WebSocket,
// [google.golang.org/grpc/peer.FromContext] returns the peer of the underlying connection.
func WebSocketRequest(ctx context.Context) (r *http.Request, ok bool) {
	r = server.WebSocketRequest(ctx)
	return r, r != nil
}

// ServeHTTP answers a request of any client that [Server.Serve] serves over HTTP, except
// WebSockets: gRPC, gRPC-Web, and Connect with binary messages or JSON. It is for programs that
// run an HTTP server, with a mux, middleware and TLS that they choose:
//
//	site := &http.Server{Addr: ":443", Handler: server, HTTP2: &http.HTTP2Config{MaxEncoderHeaderTableSize: 1}}
//	site.ListenAndServeTLS("cert.pem", "key.pem")
//
// Without this MaxEncoderHeaderTableSize any client of HTTP/2 could end the process: see
// https://github.com/nearcall/nearcall/blob/main/docs/security.md#a-programs-http-server. ServeHTTP
// then aborts requests of HTTP/2, and the log says why.
//
// gRPC needs HTTP/2; the others take HTTP/1.1, too. Without TLS the HTTP server must enable HTTP/2
// by Protocols.SetUnencryptedHTTP2. Calls are at the path /package.Service/Method: use
// http.StripPrefix for a path below another. For WebSockets see [Server.WebSockets].
//
// Services, interceptors, stats handlers, limits of messages, [OtherClients] and [WebOrigins] are
// those of the server. Limits of connections and headers are those of the HTTP server, and [Creds]
// has no effect, because the HTTP server has secured the connection. The peer has the RemoteAddr
// and the TLS of the request, and over a unix socket it counts as private. Stats handlers see a
// connection for each request.
//
// Middleware that wraps the ResponseWriter needs a method Unwrap, as http.ResponseController does.
// Without it, calls of gRPC-Web and streams fail with 500, and gRPC with Internal. Unary calls
// work, but wait for the body of a slow client for as long as the HTTP server does, whatever their
// deadline, and GracefulStop waits with them.
//
// ServeHTTP returns when the answer was written and the handler has returned. When the server was
// stopped it answers with 503. Shutdown of the http.Server does not wait for calls over WebSockets:
// call [Server.Shutdown] first, and then that, which waits until the last answers are sent.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.web.ServeHTTP(w, r, s.accept)
}

// WebSockets returns a handler that opens WebSockets, for nearcall's clients in pages and of
// ws://HOST:PORT/PATH and wss: targets. The program chooses the path:
//
//	mux.Handle("/calls", server.WebSockets())
//	mux.Handle("/shop.v1.Shop/", server)
//
// A WebSocket carries calls of all services of the server, whatever the path, and middleware sees
// only the request that opens it. If some clients may call only some services, let interceptors
// decide. The rules of [Server.ServeHTTP] for limits, peers and the end apply. The handler
// returns when the WebSocket is open.
func (s *Server) WebSockets() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.web.ServeWebSocket(w, r, s.accept) })
}
