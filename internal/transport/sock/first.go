package sock

import (
	"net"
	"strings"

	"github.com/nearcall/nearcall/internal/wire"
)

// A protocol is what a connection begins as.
type protocol int

const (
	undecided protocol = iota
	native             // nearcall's own
	http2              // gRPC's, mostly
	http1
	clientHello // TLS, where none is spoken
	unknown
)

// preface is what HTTP/2 connections begin with.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// longestMethod is how far an HTTP/1 method is looked for, in bytes.
const longestMethod = 20

// protocolOf tells a protocol by its first bytes: undecided as long as they
// could be the beginning of more than one.
func protocolOf(b []byte) protocol {
	s := string(b)
	switch {
	case strings.HasPrefix(s, wire.Magic):
		return native
	case strings.HasPrefix(s, preface):
		return http2
	case strings.HasPrefix(wire.Magic, s), strings.HasPrefix(preface, s):
		return undecided // also of nothing
	case s[0] == 0x16: // a handshake, of version 3.x
		if len(s) == 1 {
			return undecided
		}
		if s[1] == 3 {
			return clientHello
		}
		return unknown
	}
	for i := range min(len(s), longestMethod) {
		switch c := s[i]; {
		case 'A' <= c && c <= 'Z':
		case c == ' ' && i > 0:
			return http1
		default:
			return unknown
		}
	}
	if len(s) < longestMethod {
		return undecided
	}
	return unknown
}

// readFirst reads as much as tells conn's protocol, and maybe more.
func readFirst(conn net.Conn) (first []byte, p protocol, err error) {
	const room = 512 // more than is ever undecided
	first = make([]byte, 0, room)
	for {
		n, err := conn.Read(first[len(first):room])
		first = first[:len(first)+n]
		if p := protocolOf(first); p != undecided {
			return first, p, nil
		}
		if err != nil {
			return nil, undecided, err
		}
	}
}
