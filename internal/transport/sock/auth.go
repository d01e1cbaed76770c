package sock

import (
	"crypto/tls"
	"net"
	"reflect"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/wire"
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

// accepted does the server's part of the security handshake on conn, if that has not begun.
// before was already read from secured. mixes says that the client may speak several protocols
// over HTTP/2: in TLS it has also offered HTTP/1.1, which clients of gRPC alone do not.
func (o Options) accepted(conn net.Conn) (secured net.Conn, auth credentials.AuthInfo, before []byte, mixes bool, err error) {
	if b, ok := conn.(*Begun); ok {
		return b.Conn, o.PlainAuth(b.Conn), b.first, false, nil
	}
	if creds := o.Config.ServerCreds; creds != nil {
		secured, auth, mixes, err = handshake(creds, conn)
		return secured, auth, nil, mixes, err
	}
	if c, ok := conn.(*tls.Conn); ok { // from a tls.NewListener
		if err := c.Handshake(); err != nil {
			return nil, nil, nil, false, err
		}
		return c, link.TLSInfo(c.ConnectionState()), nil, false, nil
	}
	return conn, o.PlainAuth(conn), nil, false, nil
}

// acceptedTCP returns the bare TCP connection below one that was accepted, as [bareTCP] does.
func (o Options) acceptedTCP(conn, secured net.Conn) *net.TCPConn {
	return bareTCP(conn, secured, o.Config.ServerCreds)
}

// agreed reports whether the handshake with the result auth has agreed on nearcall's protocol, by
// ALPN.
func agreed(auth credentials.AuthInfo) bool {
	info, ok := auth.(credentials.TLSInfo)
	return ok && info.State.NegotiatedProtocol == wire.ALPN
}

// handshake does the server's part of creds' handshake on conn. If creds are TLS, conn stays open
// when the handshake fails: if the handshake closed it, the alert could get lost. Other
// credentials get conn itself, as in grpc-go, because they may look at its type.
func handshake(creds credentials.TransportCredentials, conn net.Conn) (secured net.Conn, auth credentials.AuthInfo, mixes bool, err error) {
	if !isTLS(creds) {
		secured, auth, err = creds.ServerHandshake(conn)
		return secured, auth, false, err
	}
	kept := &keptOpen{Conn: conn}
	secured, auth, err = creds.ServerHandshake(kept)
	if err == nil {
		kept.closes.Store(true)
	}
	return secured, auth, kept.mixes, err
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
	mixes  bool
}

// Offered is called by credentials, during the handshake, with the protocols that the client
// offers.
func (k *keptOpen) Offered(protocols []string) { k.mixes = slices.Contains(protocols, "http/1.1") }

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (k *keptOpen) NetConn() net.Conn { return k.Conn }

func (k *keptOpen) Close() error {
	if k.closes.Load() {
		return k.Conn.Close()
	}
	return nil
}
