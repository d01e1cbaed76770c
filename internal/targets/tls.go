package targets

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
)

// NewTLS implements nearcall.NewTLS.
func NewTLS(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		c = new(tls.Config)
	}
	c = c.Clone()
	server := agreeing(c)
	server.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if conn, ok := hello.Conn.(interface{ Offered(protocols []string) }); ok {
			conn.Offered(hello.SupportedProtos)
		}
		if c.GetConfigForClient == nil {
			return nil, nil
		}
		config, err := c.GetConfigForClient(hello)
		if err != nil || config == nil {
			return nil, err
		}
		return agreeing(config), nil
	}
	return &tlsCredentials{credentials.NewTLS(c), server, c}
}

// agreeing returns a copy of a server's c that agrees on nearcall's protocol, on HTTP/2 and on
// HTTP/1.1, unless c names protocols.
func agreeing(c *tls.Config) *tls.Config { return withProtocols(c, wire.ALPN, "h2", "http/1.1") }

// withProtocols returns a copy of c with these protocols, unless c names others.
func withProtocols(c *tls.Config, protocols ...string) *tls.Config {
	c = c.Clone()
	if len(c.NextProtos) == 0 {
		c.NextProtos = protocols
	}
	return c
}

type tlsCredentials struct {
	credentials.TransportCredentials // the client's
	server                           *tls.Config
	config                           *tls.Config // a copy of the user's
}

// Server returns credentials that do what ServerHandshake does with the connection if the handshake
// fails.
func (c *tlsCredentials) Server() credentials.TransportCredentials { return c.TransportCredentials }

// OfferNearcall returns credentials whose clients offer nearcall's protocol before HTTP/2, unless the
// configuration names protocols. A server that does not know it agrees on HTTP/2, as without.
func (c *tlsCredentials) OfferNearcall() credentials.TransportCredentials {
	return &tlsCredentials{credentials.NewTLS(withProtocols(c.config, wire.ALPN, "h2")), c.server, c.config}
}

// offering returns creds whose clients offer nearcall's protocol, if creds can do that.
func offering(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if c, ok := creds.(interface {
		OfferNearcall() credentials.TransportCredentials
	}); ok {
		return c.OfferNearcall()
	}
	return creds
}

// ServerHandshake implements [credentials.TransportCredentials]. Unlike grpc-go's it takes clients
// that offer no protocol by ALPN if it agrees on HTTP/1.1: many that speak only that offer none,
// such as Node's https.
func (c *tlsCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured := tls.Server(conn, c.server)
	err := secured.Handshake()
	if err == nil && secured.ConnectionState().NegotiatedProtocol == "" && !slices.Contains(c.server.NextProtos, "http/1.1") {
		err = errors.New("the client and the server agree on no protocol by ALPN")
	}
	if err != nil {
		_ = secured.Close()
		return nil, nil, err
	}
	return secured, link.TLSInfo(secured.ConnectionState()), nil
}

// Clone implements [credentials.TransportCredentials].
func (c *tlsCredentials) Clone() credentials.TransportCredentials {
	return &tlsCredentials{c.TransportCredentials.Clone(), c.server, c.config.Clone()}
}

// OverrideServerName implements [credentials.TransportCredentials].
func (c *tlsCredentials) OverrideServerName(name string) error {
	c.config.ServerName = name
	//lint:ignore SA1019 deprecated, but part of the interface
	return c.TransportCredentials.OverrideServerName(name)
}

// defaultTLS is the configuration of wss: targets without credentials.
var defaultTLS = new(tls.Config)

// httpCredentials secure the connections of wss: targets as HTTPS does.
type httpCredentials struct {
	credentials.TransportCredentials
	config *tls.Config
}

// ClientHandshake implements [credentials.TransportCredentials].
func (c httpCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config := c.config.Clone()
	config.NextProtos = []string{"http/1.1"}
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	config.ServerName = cmp.Or(config.ServerName, host)
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return secured, link.TLSInfo(secured.ConnectionState()), nil
}
