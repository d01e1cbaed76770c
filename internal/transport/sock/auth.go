package sock

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
)

// A Process is the process at the other end of a unix socket.
type Process struct {
	PID      int
	UID, GID uint32
}

// PlainAuth returns the AuthInfo of a connection without credentials.
func (o Options) PlainAuth(conn net.Conn) credentials.AuthInfo {
	if a := conn.LocalAddr(); a == nil || a.Network() != "unix" {
		return link.Insecure
	}
	if o.Unix != nil {
		if p, ok := processOf(conn); ok {
			return o.Unix(p)
		}
	}
	return link.Private
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
		return c, link.TLSInfo(c.ConnectionState()), nil
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
