package sock

import (
	"net"
	"strings"

	"github.com/nearcall/nearcall/internal/wire"
)

// A protocol is the protocol of a connection, as its first bytes tell.
type protocol int

const (
	undecided protocol = iota
	native             // nearcall
	offer              // nearcall, with an offer of an upgrade
	http2              // gRPC, mostly
	http1
	clientHello // TLS, on a server without TLS
	unknown
)

// preface is the start of every HTTP/2 connection.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// longestMethod is the longest HTTP/1 method that is recognised, in bytes.
const longestMethod = 20

// protocolOf returns the protocol that starts with b: undecided while b could be the start of more
// than one. line is the start of an offer; if it is empty, there are no offers.
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
		return undecided // also if s is empty
	case s[0] == 0x16: // a TLS handshake record, of version 3.x
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

// readFirst reads until the protocol of conn is known, and maybe more. The parameter before holds
// the bytes that were read already, and the result first starts with them.
func (o Options) readFirst(conn net.Conn, before []byte) (first []byte, p protocol, err error) {
	const room = 512 // longer than any prefix that does not decide
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
