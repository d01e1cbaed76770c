package targets

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
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

// agreeing returns a copy of a server's c. If c names no protocols, the copy agrees on
// nearcall's protocol, on HTTP/2 and on HTTP/1.1.
func agreeing(c *tls.Config) *tls.Config { return withProtocols(c, wire.ALPN, "h2", "http/1.1") }

// withProtocols returns a copy of c with these protocols, or c's own if it names any.
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

// Server returns credentials for servers. A failed handshake treats the connection as
// ServerHandshake does.
func (c *tlsCredentials) Server() credentials.TransportCredentials { return c.TransportCredentials }

// OfferNearcall returns credentials for clients. If the configuration names no protocols, they
// offer nearcall's before HTTP/2. A server that does not know nearcall's agrees on HTTP/2.
func (c *tlsCredentials) OfferNearcall() credentials.TransportCredentials {
	return &tlsCredentials{credentials.NewTLS(withProtocols(c.config, wire.ALPN, "h2")), c.server, c.config}
}

// offering returns creds whose clients offer nearcall's protocol, if creds can do that.
func offering(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if c, ok := creds.(*tlsCredentials); ok {
		return c.OfferNearcall()
	}
	return creds
}

// ServerHandshake implements [credentials.TransportCredentials]. Unlike grpc-go's, a server that
// agrees on HTTP/1.1 takes clients without ALPN: many that speak only HTTP/1.1 have none, such as
// Node's https.
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
	config.ServerName = cmp.Or(config.ServerName, link.HostOf(authority))
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	return secured, link.TLSInfo(secured.ConnectionState()), nil
}

// Secured returns creds, or nil if they are nil or those of package insecure. Other credentials
// that call themselves insecure do count, because their handshake may check or record the peer.
func Secured(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if creds == nil || reflect.TypeOf(creds) == reflect.TypeOf(insecure.NewCredentials()) {
		return nil
	}
	return creds
}

// security returns the credentials for connections to t, nil for none. It returns an
// error if grpc-go's rules forbid such connections. Unlike in grpc-go, targets on this
// machine need no credentials.
func (t *Target) security(o *options.Client) (credentials.TransportCredentials, error) {
	given, err := o.Credentials()
	if err != nil {
		return nil, err
	}
	creds := Secured(given)
	switch {
	case creds == nil && t.network == "unix":
		return nil, nil
	case given == nil && !t.staysHere():
		return nil, errors.New("no transport security set (use nearcall.WithTransportCredentials(insecure.NewCredentials()) explicitly or set credentials)")
	case creds != nil && creds.Info().SecurityProtocol != "insecure": // as in grpc-go
		return creds, nil
	}
	return creds, o.CheckInsecure()
}

// wholeCreds returns the credentials of targets that go to grpc-go as a whole, nil for none.
func wholeCreds(o *options.Client) credentials.TransportCredentials { return Secured(o.TransportCreds) }

// addressed returns the authority of calls to t. As in grpc-go it comes from the
// options, the credentials or the target, in this order.
func (t *Target) addressed(o *options.Client, c Caller) (string, error) {
	name, own := "", cmp.Or(c.Authority, o.UserAuthority)
	if o.TransportCreds != nil {
		//lint:ignore SA1019 deprecated, but grpc-go still honours it
		name = o.TransportCreds.Info().ServerName
	}
	switch {
	case name != "" && own != "" && name != own:
		return "", fmt.Errorf("the credentials' server name %q and the option's authority %q do not match", name, own)
	case own != "":
		return own, nil
	case name != "":
		return name, nil
	}
	return t.Scheme.authority(t), nil
}
