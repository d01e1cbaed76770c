package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/websocket"
)

const writeWS = "write ws://HOST:PORT/PATH, or wss:// for TLS"

// parseWebSocket fills in the parts of a ws: or wss: target.
func (t *Target) parseWebSocket() error {
	u, err := url.Parse(t.Scheme.name + ":" + t.Rest)
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
		port = map[string]string{"ws": "80", "wss": "443"}[t.Scheme.name]
	}
	if u.Path == "" {
		u.Path = "/"
	}
	t.url = u
	tcp := &Target{Scheme: t.Scheme, text: t.text, Rest: net.JoinHostPort(u.Hostname(), port)}
	if err := tcp.parseTCP(); err != nil {
		return fmt.Errorf("malformed address %q; %s", u.Host, writeWS)
	}
	t.network, t.address = tcp.network, tcp.address
	return nil
}

// hostOfURL returns the authority of targets that are URLs.
func (t *Target) hostOfURL() string { return t.url.Host }

// dialWebSocket returns the dialer of ws: and wss: targets.
func dialWebSocket(t *Target, o *options.Client, c Caller) (link.Dialer, string, error) {
	if t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", writeWS)
	}
	creds, err := t.webSocketSecurity(o)
	if err != nil {
		return nil, "", err
	}
	authority, err := t.addressed(o, c)
	if err != nil {
		return nil, "", err
	}
	d := t.socketDialer(o, authority, c)
	d.Creds = creds
	d.Wrap = func(ctx context.Context, conn net.Conn) (net.Conn, error) {
		return websocket.Dial(ctx, conn, mux.PromptOf(conn), t.url)
	}
	return d, authority, nil
}

// webSocketSecurity returns the credentials for connections to t, nil for none.
func (t *Target) webSocketSecurity(o *options.Client) (credentials.TransportCredentials, error) {
	if t.Scheme.name == "ws" {
		if _, ok := o.TransportCreds.(*tlsCredentials); ok {
			return nil, fmt.Errorf("a ws: target has no TLS, and the credentials need it; write wss:%s", t.Rest)
		}
		creds, err := t.security(o)
		if err == nil && creds != nil {
			err = fmt.Errorf("a ws: target cannot use transport credentials; write wss:%s, with nearcall.NewTLS", t.Rest)
		}
		return nil, err
	}
	switch c := o.TransportCreds.(type) {
	case nil:
		if o.BundleCreds != nil {
			return nil, errors.New("a wss: target cannot use a credentials.Bundle; use nearcall.NewTLS and WithPerRPCCredentials")
		}
		return httpCredentials{config: defaultTLS}, nil
	case *tlsCredentials:
		return httpCredentials{config: c.config}, nil
	}
	return nil, errors.New("a wss: target cannot use these transport credentials, because HTTP/1.1 comes before nearcall's protocol; make them with nearcall.NewTLS, or leave them out to trust the system's certificates")
}

// listenWebSocket listens on a ws: or wss: target.
func listenWebSocket(t *Target, o socketfile.Options) (Listener, error) {
	if t.url.RawQuery != "" {
		return nil, fmt.Errorf("a listener takes no query; %s", writeWS)
	}
	s, err := t.listen(o)
	if err != nil {
		return nil, err
	}
	target := *t.url
	target.Host = strings.TrimPrefix(reachable(t.host(), s.Addr()), "tcp:")
	s.target, s.Path, s.needsTLS = target.String(), t.url.Path, t.Scheme.name == "wss"
	return s, nil
}
