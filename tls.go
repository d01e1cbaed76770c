package nearcall

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
)

// NewTLS returns transport credentials for [WithTransportCredentials] and [Creds], like
// those of [credentials.NewTLS], with two differences:
//
//   - A client can use them for wss: targets, too, where HTTP/1.1 comes first.
//   - A server also agrees on http/1.1, unless c.NextProtos is set, so that browsers and
//     other HTTP/1.1 clients are served. Clients that offer h2 and http/1.1 get http/1.1:
//     ordinary gRPC clients offer h2 only.
//
// A nil c means the zero Config. NewTLS copies c.
func NewTLS(c *tls.Config) credentials.TransportCredentials {
	if c == nil {
		c = new(tls.Config)
	}
	c = c.Clone()
	server := c.Clone()
	if len(server.NextProtos) == 0 {
		server.NextProtos = []string{"http/1.1"} // to which NewTLS adds h2
	}
	return &tlsCredentials{credentials.NewTLS(c), credentials.NewTLS(server), c}
}

type tlsCredentials struct {
	credentials.TransportCredentials // the client's
	server                           credentials.TransportCredentials
	config                           *tls.Config // of a client
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
