package sock

import (
	"crypto/tls"
	"net"
	"reflect"
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

// handshake does the server's part of creds' handshake on conn. If creds are TLS, conn stays open
// when the handshake fails: if they closed it, the peer could lose the alert. Other credentials
// get conn itself, as in grpc-go: they may ask what kind it is.
func handshake(creds credentials.TransportCredentials, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !isTLS(creds) {
		return creds.ServerHandshake(conn)
	}
	kept := &keptOpen{Conn: conn}
	secured, auth, err := creds.ServerHandshake(kept)
	if err == nil {
		kept.closes.Store(true)
	}
	return secured, auth, err
}

// isTLS reports whether creds are grpc-go's TLS credentials, or are made from these.
func isTLS(creds credentials.TransportCredentials) bool {
	if c, ok := creds.(interface {
		Server() credentials.TransportCredentials
	}); ok {
		creds = c.Server()
	}
	return reflect.TypeOf(creds) == reflect.TypeOf(credentials.NewTLS(nil))
}

// keptOpen is a connection that the handshake cannot close.
type keptOpen struct {
	net.Conn
	closes atomic.Bool
}

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (k *keptOpen) NetConn() net.Conn { return k.Conn }

func (k *keptOpen) Close() error {
	if k.closes.Load() {
		return k.Conn.Close()
	}
	return nil
}
