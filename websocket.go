package nearcall

import (
	"context"
	"net/http"

	"github.com/nearcall/nearcall/internal/call"
)

// WebSocketRequest returns the request that opened the WebSocket over which a handler's call
// came, with its URL, Host, Header (and so the cookies and the Origin), RemoteAddr and TLS. If
// only "*" of [WebOrigins] allows the Origin, Cookie and Authorization are missing. Each call of
// WebSocketRequest makes a copy, because the server keeps the header in a form that takes less
// memory. All copies share TLS, which must not be changed.
//
// ctx is the context of a handler or a server interceptor, or one derived from it. For any other
// context, and for a call over another transport, ok is false. The peer of a call over WebSocket,
// [google.golang.org/grpc/peer.FromContext], is that of the connection below.
func WebSocketRequest(ctx context.Context) (r *http.Request, ok bool) {
	r = call.WebSocketRequest(ctx)
	return r, r != nil
}

// ServeHTTP opens a WebSocket and serves the calls that come over it. It is for programs that run
// an HTTP server:
//
//	http.Handle("/calls", server)
//
// The listeners of [Server.Serve] take WebSockets anyway, at any path. Clients dial
// ws://HOST:PORT/calls, or wss: if the HTTP server uses TLS. ServeHTTP refuses requests of pages
// of other origins unless [WebOrigins] allows them. It also refuses requests that do not ask for a
// WebSocket with the subprotocol nearcall.v1 and, with 503, requests to a server that was stopped.
// The HTTP server must speak HTTP/1.1. [Creds] has no effect, because the HTTP server has secured
// the connection.
//
// ServeHTTP returns when the WebSocket is open. [Server.GracefulStop] waits for its calls,
// and http.Server.Shutdown does not: call GracefulStop first.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.web.ServeWebSocket(w, r, s.accept)
}

// begin records that the server takes calls. It reports false if the server was stopped.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled {
		s.core.Start()
	}
	return !s.settled
}
