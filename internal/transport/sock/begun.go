package sock

import (
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// A Begun is a connection whose security handshake is over, and from which the first bytes were
// read. A listener can serve it instead of the connection itself.
type Begun struct {
	net.Conn                      // secured
	auth     credentials.AuthInfo // of the peer; nil if the connection was not secured
	first    []byte               // what was read and Read has not returned yet
}

// Begin reads the first bytes of conn, and reports whether its client speaks HTTP/2. auth is the
// result of the security handshake. A client that asks for the protocol is nearcall's.
func Begin(conn net.Conn, auth credentials.AuthInfo) (b *Begun, isHTTP2 bool, err error) {
	if u, ok := conn.(*net.UnixConn); ok {
		scmrights.Refuse(u)
	}
	b = &Begun{Conn: conn, auth: auth}
	if agreed(auth) {
		return b, false, nil
	}
	first, p, err := Options{}.readFirst(conn, nil)
	if err != nil {
		return nil, false, err
	}
	b.first = first
	return b, p == http2 || p == question && wasAnswered(first), nil
}

// Read implements [net.Conn]. It returns the first bytes again.
func (b *Begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	if b.first = b.first[n:]; len(b.first) == 0 {
		b.first = nil
	}
	return n, nil
}
