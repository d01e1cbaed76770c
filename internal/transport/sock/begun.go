package sock

import (
	"net"

	"github.com/nearcall/nearcall/internal/scmrights"
)

// A Begun is a connection without credentials from which the first bytes were read. A listener can
// serve it instead of the connection itself.
type Begun struct {
	net.Conn
	first []byte        // what was read and Read has not returned yet
	Over  chan struct{} // closed when the handshake of the session is over
}

// Begin reads the first bytes of conn, and reports whether its client speaks HTTP/2. A client that
// asks for the protocol is nearcall's.
func Begin(conn net.Conn) (b *Begun, isHTTP2 bool, err error) {
	if u, ok := conn.(*net.UnixConn); ok {
		scmrights.Refuse(u)
	}
	first, p, err := Options{}.readFirst(conn, nil)
	if err != nil {
		return nil, false, err
	}
	return &Begun{Conn: conn, first: first, Over: make(chan struct{})}, p == http2 || p == question && wasAnswered(first), nil
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
