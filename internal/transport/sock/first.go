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
	offer              // of something better than a socket
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
// could be the beginning of more than one. Offers begin with line, where that is
// not empty.
func protocolOf(b []byte, line string) protocol {
	s := string(b)
	switch {
	case strings.HasPrefix(s, wire.Magic):
		return native
	case line != "" && strings.HasPrefix(s, line):
		return offer
	case strings.HasPrefix(line, s):
		return undecided
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

// readFirst reads as much as tells conn's protocol, and maybe more, after what
// was read before.
func (o Options) readFirst(conn net.Conn, before []byte) (first []byte, p protocol, err error) {
	const room = 512 // more than is ever undecided
	first = append(make([]byte, 0, max(room, len(before)+1)), before...)
	for {
		if len(first) > 0 {
			if p = protocolOf(first, o.Upgrade.line()); p != undecided {
				return first, p, nil
			}
		}
		if err != nil {
			return nil, undecided, err
		}
		var n int
		n, err = conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
	}
}
