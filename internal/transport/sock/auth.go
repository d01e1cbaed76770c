package sock

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// A Process is the process at the other end of a unix socket.
type Process struct {
	PID      int
	UID, GID uint32
}

type authInfo struct {
	credentials.CommonAuthInfo
	kind string
}

// AuthType implements [credentials.AuthInfo]. It is that of gRPC's local or insecure
// credentials.
func (a authInfo) AuthType() string { return a.kind }

// ValidateAuthority implements [credentials.AuthorityValidator]. Every authority is valid,
// as there is no certificate to check it against.
func (authInfo) ValidateAuthority(string) error { return nil }

// PlainAuth returns the AuthInfo of a connection without credentials.
func (o Options) PlainAuth(conn net.Conn) credentials.AuthInfo {
	if a := conn.LocalAddr(); a == nil || a.Network() != "unix" {
		return authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, "insecure"}
	}
	if o.Unix != nil {
		if p, ok := processOf(conn); ok {
			return o.Unix(p)
		}
	}
	return authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, "local"}
}

// accepted does the server's part of the security handshake on conn.
func (o Options) accepted(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if o.Creds != nil {
		return handshake(o.Creds, conn)
	}
	if c, ok := conn.(*tls.Conn); ok { // from a tls.NewListener
		if err := c.Handshake(); err != nil {
			return nil, nil, err
		}
		private := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
		return c, credentials.TLSInfo{State: c.ConnectionState(), CommonAuthInfo: private}, nil
	}
	return conn, o.PlainAuth(conn), nil
}

// handshake does the server's part of creds' handshake on conn. It keeps conn open when the
// handshake fails, even if creds close it: the close could discard an alert before the peer
// has read it.
func handshake(creds credentials.TransportCredentials, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	kept := &keptOpen{Conn: conn}
	secured, auth, err := creds.ServerHandshake(kept)
	if err == nil || errors.Is(err, credentials.ErrConnDispatched) {
		kept.closes.Store(true)
	}
	if secured == net.Conn(kept) { // creds that do not encrypt return the connection they got
		secured = conn
	}
	return secured, auth, err
}

// keptOpen is a connection that the handshake cannot close.
type keptOpen struct {
	net.Conn
	closes atomic.Bool
}

func (k *keptOpen) Close() error {
	if k.closes.Load() {
		return k.Conn.Close()
	}
	return nil
}
