package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/websocket"
)

// WebSocketRequest returns the request that opened the WebSocket by which a handler's call has
// come, with its URL, Host, Header (and so the cookies and the Origin), RemoteAddr and TLS. If
// only "*" of [WebOrigins] allows the Origin, Cookie and Authorization are missing. Each call
// of WebSocketRequest makes a copy, as the header is kept in a form that takes less memory. It
// shares the TLS, which must not be changed.
//
// ctx is the context of a handler or a server interceptor, or one derived from it. For any
// other context, and for a call that has come another way, ok is false. The peer of a call
// over WebSocket, [google.golang.org/grpc/peer.FromContext], is that of the connection below.
func WebSocketRequest(ctx context.Context) (r *http.Request, ok bool) {
	r = call.WebSocketRequest(ctx)
	return r, r != nil
}

// ServeHTTP opens a WebSocket and serves the calls that come over it. It is for programs
// with an HTTP server of their own:
//
//	http.Handle("/calls", server)
//
// The listeners of [Server.Serve] take WebSockets anyway, at any path. Clients dial
// ws://HOST:PORT/calls, or wss: if the HTTP server uses TLS. Requests of pages of other
// origins are refused unless [WebOrigins] allows them, as are requests that do not ask for
// a WebSocket with the subprotocol nearcall.v1, and, with 503, requests to a server that
// was stopped. The HTTP server must speak HTTP/1.1. [Creds] has no effect, because the HTTP
// server has secured the connection.
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
	if !s.stopped {
		s.core.Start()
	}
	return !s.stopped
}

const writeWS = "write ws://HOST:PORT/PATH, or wss:// for TLS"

// parseWebSocket fills in the parts of a ws: or wss: target.
func (t *parsedTarget) parseWebSocket() error {
	u, err := url.Parse(t.scheme.name + ":" + t.rest)
	switch {
	case err != nil:
		return fmt.Errorf("%w; %s", errors.Unwrap(err), writeWS)
	case u.Host == "" || u.Opaque != "":
		return fmt.Errorf("the host is missing; %s", writeWS)
	case u.User != nil:
		return fmt.Errorf("a user name or password is not sent; %s", writeWS)
	case u.Fragment != "":
		return fmt.Errorf("a fragment is not sent; %s", writeWS)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"ws": "80", "wss": "443"}[t.scheme.name]
	}
	if u.Path == "" {
		u.Path = "/"
	}
	t.url = u
	tcp := &parsedTarget{scheme: t.scheme, text: t.text, rest: net.JoinHostPort(u.Hostname(), port)}
	if err := tcp.parseTCP(); err != nil {
		return fmt.Errorf("malformed address %q; %s", u.Host, writeWS)
	}
	t.network, t.address = tcp.network, tcp.address
	return nil
}

// hostOfURL returns the authority of targets that are URLs.
func (t *parsedTarget) hostOfURL() string { return t.url.Host }

// dialWebSocket returns the dialer of ws: and wss: targets.
func dialWebSocket(t *parsedTarget, o *options.Dial) (link.Dialer, string, error) {
	if t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", writeWS)
	}
	creds, err := t.webSocketSecurity(o)
	if err != nil {
		return nil, "", err
	}
	authority, err := t.addressed(o)
	if err != nil {
		return nil, "", err
	}
	d := t.socketDialer(o, authority)
	d.Options.Creds, d.Options.NoUpgrade = creds, true
	d.Wrap = func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		return websocket.Dial(ctx, conn, mux.PromptOf(conn), t.url, nil)
	}
	return d, authority, nil
}

// webSocketSecurity returns the credentials for connections to t, nil for none.
func (t *parsedTarget) webSocketSecurity(o *options.Dial) (credentials.TransportCredentials, error) {
	if t.scheme.name == "ws" {
		if _, ok := o.Transport.(*tlsCredentials); ok {
			return nil, fmt.Errorf("a ws: target has no TLS, and the credentials need it; write wss:%s", t.rest)
		}
		creds, err := t.security(o)
		if err == nil && creds != nil {
			err = fmt.Errorf("a ws: target cannot use transport credentials; write wss:%s, with nearcall.NewTLS", t.rest)
		}
		return nil, err
	}
	switch c := o.Transport.(type) {
	case nil:
		if o.Bundle != nil {
			return nil, errors.New("a wss: target cannot use a credentials.Bundle; use nearcall.NewTLS and WithPerRPCCredentials")
		}
		return httpCredentials{config: defaultTLS}, nil
	case *tlsCredentials:
		return httpCredentials{config: c.config}, nil
	}
	return nil, errors.New("a wss: target cannot use these transport credentials, because HTTP/1.1 comes before nearcall's protocol; make them with nearcall.NewTLS, or leave them out to trust the system's certificates")
}

// listenWebSocket listens on a ws: or wss: target.
func listenWebSocket(t *parsedTarget, _ *listenOptions) (Listener, error) {
	if t.url.RawQuery != "" {
		return nil, fmt.Errorf("a listener takes no query; %s", writeWS)
	}
	lis, err := listen(t.network, t.address)
	if err != nil {
		return nil, err
	}
	target := *t.url
	target.Host = strings.TrimPrefix(reachable(t.host(), lis.Addr()), "tcp:")
	return socket{Listener: lis, target: target.String(), path: t.url.Path, needsTLS: t.scheme.name == "wss"}, nil
}
