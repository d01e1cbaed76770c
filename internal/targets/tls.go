package targets

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
)

// NewTLS implements nearcall.NewTLS.
func NewTLS(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		c = new(tls.Config)
	}
	c = c.Clone()
	server := withHTTP(c)
	server.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if conn, ok := hello.Conn.(interface{ Offered(protocols []string) }); ok {
			conn.Offered(hello.SupportedProtos)
		}
		if c.GetConfigForClient == nil {
			return nil, nil
		}
		config, err := c.GetConfigForClient(hello)
		if config != nil {
			config = withHTTP(config)
		}
		return config, err
	}
	return &tlsCredentials{credentials.NewTLS(c), credentials.NewTLS(server), c}
}

// withHTTP returns a copy of a server's c that agrees on HTTP/2 and on HTTP/1.1, unless c names
// protocols.
func withHTTP(c *tls.Config) *tls.Config {
	c = c.Clone()
	if len(c.NextProtos) == 0 {
		c.NextProtos = []string{"h2", "http/1.1"}
	}
	return c
}

type tlsCredentials struct {
	credentials.TransportCredentials // the client's
	server                           credentials.TransportCredentials
	config                           *tls.Config // a copy of the user's
}

// Server returns the credentials that ServerHandshake uses.
func (c *tlsCredentials) Server() credentials.TransportCredentials { return c.server }

// ServerHandshake implements [credentials.TransportCredentials].
func (c *tlsCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c.server.ServerHandshake(conn)
}

// Clone implements [credentials.TransportCredentials].
func (c *tlsCredentials) Clone() credentials.TransportCredentials {
	return &tlsCredentials{c.TransportCredentials.Clone(), c.server.Clone(), c.config.Clone()}
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
