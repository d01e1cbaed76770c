// Package sniff finds out which protocol the peer of a connection speaks, by the first bytes.
package sniff

import (
	"io"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/wire"
)

// A Protocol is what a client speaks, as its first bytes tell.
type Protocol int

// The protocols of clients.
const (
	Undecided Protocol = iota
	Native             // nearcall
	Offer              // nearcall, with an offer of an upgrade
	Question           // a question: which protocol does the server speak?
	HTTP2              // gRPC, mostly
	HTTP1
	TLS // on a server without TLS
	Unknown
)

const preface = wire.Preface

// longestMethod is the longest HTTP/1 method that is recognised, in bytes.
const longestMethod = 20

// protocolOf returns the protocol that starts with b: undecided while b could be the start of more
// than one. line is the start of an offer; if it is empty, there are no offers.
func protocolOf(b []byte, line string) Protocol {
	s := string(b)
	switch {
	case strings.HasPrefix(s, wire.Magic):
		return Native
	case line != "" && strings.HasPrefix(s, line):
		return Offer
	case strings.HasPrefix(line, s):
		return Undecided
	case strings.HasPrefix(s, preface):
		return protocolOfHTTP2(b[len(preface):])
	case strings.HasPrefix(wire.Magic, s), strings.HasPrefix(preface, s):
		return Undecided // also if s is empty
	case s[0] == 0x16: // a TLS handshake record, of version 3.x
		if len(s) == 1 {
			return Undecided
		}
		if s[1] == 3 {
			return TLS
		}
		return Unknown
	}
	for i := range min(len(s), longestMethod) {
		switch c := s[i]; {
		case 'A' <= c && c <= 'Z':
		case c == ' ' && i > 0:
			return HTTP1
		default:
			return Unknown
		}
	}
	if len(s) < longestMethod {
		return Undecided
	}
	return Unknown
}

// protocolOfHTTP2 returns the protocol of a client that has sent the preface of HTTP/2, and then b.
// Its SETTINGS tell whether it asks for the server's protocol.
func protocolOfHTTP2(b []byte) Protocol {
	switch {
	case !mayBeSettings(b):
		return HTTP2
	case len(b) < frameHead || len(b) < frameHead+payloadSize(b):
		return Undecided
	case asks(b[frameHead : frameHead+payloadSize(b)]):
		return Question
	}
	return HTTP2
}

// mayBeSettings reports whether b can be the beginning of the SETTINGS that a side of HTTP/2 sends
// first.
func mayBeSettings(b []byte) bool {
	for i, c := range b[:min(len(b), frameHead)] {
		switch {
		case i == 0 && c > 0, i == 3 && c != frameSettings, i == 4 && c&flagEnd != 0, i == 5 && c&0x7f != 0, i > 5 && c != 0:
			return false // in turn: size, type, ACK, reserved bit and stream
		}
	}
	return len(b) < 3 || payloadSize(b) <= maxFrame
}

// asks reports whether the payload of a SETTINGS frame has [wire.Setting]. As for all settings, the
// last value counts.
func asks(settings []byte) (yes bool) {
	for ; len(settings) >= settingSize; settings = settings[settingSize:] {
		if string(settings[:2]) == wire.Setting[:2] {
			yes = string(settings[2:settingSize]) == wire.Setting[2:]
		}
	}
	return yes && len(settings) == 0
}

// Agreed reports whether the handshake with the result auth has agreed on nearcall's protocol, by
// ALPN.
func Agreed(auth credentials.AuthInfo) bool {
	info, ok := auth.(credentials.TLSInfo)
	return ok && info.State.NegotiatedProtocol == wire.ALPN
}

// Answer answers the question at the start of first, and returns what Read returns of the bytes
// after the question.
func Answer(conn net.Conn, first []byte, line string) ([]byte, Protocol, error) {
	if _, err := io.WriteString(conn, wire.Answer); err != nil {
		return nil, Undecided, err
	}
	return Read(conn, first[questionSize(first):], line)
}

// questionSize returns the size of the question at the start of b.
func questionSize(b []byte) int {
	return len(preface) + frameHead + payloadSize(b[len(preface):])
}

// wasAnswered reports whether more SETTINGS have arrived with the question at the start of b.
// Then the client already has an answer: a multiplexer before the server, such as cmux, has sent
// SETTINGS to see the client's first request. The connection is one of HTTP/2.
func wasAnswered(b []byte) bool {
	rest := b[questionSize(b):]
	return len(rest) > 0 && mayBeSettings(rest)
}

// Read reads until the protocol of conn is known, and maybe more. The parameter before holds the
// bytes that were read already, and the result first starts with them. line is the start of an
// offer; if it is empty, there are no offers.
func Read(conn net.Conn, before []byte, line string) (first []byte, p Protocol, err error) {
	const room = 512 // longer than most prefixes that do not decide
	first = append(make([]byte, 0, max(room, len(before)+1)), before...)
	for {
		if len(first) > 0 {
			p = protocolOf(first, line)
			if p == Question && wasAnswered(first) {
				p = HTTP2
			}
			if p != Undecided {
				return first, p, nil
			}
		}
		if err != nil {
			return nil, Undecided, err
		}
		if len(first) == cap(first) { // a question can be as long as a frame of HTTP/2
			first = slices.Grow(first, len(first))
		}
		var n int
		n, err = conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
	}
}

// A Begun is a connection without credentials from which the first bytes were read. A listener can
// serve it instead of the connection itself.
type Begun struct {
	net.Conn
	First []byte        // bytes that were read and that Read has not returned yet
	Over  chan struct{} // closed when the handshake of the session has ended
}

// Begin reads the first bytes of conn, and reports whether its client speaks HTTP/2. A client that
// asks for the protocol is nearcall's.
func Begin(conn net.Conn) (b *Begun, isHTTP2 bool, err error) {
	if u, ok := conn.(*net.UnixConn); ok {
		scmrights.Refuse(u)
	}
	first, p, err := Read(conn, nil, "")
	if err != nil {
		return nil, false, err
	}
	return &Begun{Conn: conn, First: first, Over: make(chan struct{})}, p == HTTP2, nil
}

// Read implements [net.Conn]. It returns the first bytes again.
func (b *Begun) Read(p []byte) (int, error) {
	if len(b.First) == 0 {
		return b.Conn.Read(p)
	}
	return Take(p, &b.First), nil
}

// Take moves bytes from first, which were read before, to b.
func Take(b []byte, first *[]byte) int {
	n := copy(b, *first)
	if *first = (*first)[n:]; len(*first) == 0 {
		*first = nil
	}
	return n
}

// Who serves a connection follows from the content type in its first header block: HPACK, RFC 7541. A
// first block finds the dynamic table empty, and the search ends at the first content type, so a
// field that refers to the dynamic table is another. All fields before are skipped, so a whole
// decoder is not needed.

const (
	staticContentType = 31 // the index of content-type, with an empty value, in the static table

	plainName, codedName = "content-type", "\x21\xea\x49\x6a\x4a\xc9\xf5\x59\x7f"
	plainGRPC, codedGRPC = "application/grpc", "\x1d\x75\xd0\x62\x0d\x26\x3d\x4c\x4d\x65\x64" // 88 bits, without padding
)

// serverFor returns who serves the connection whose first header block is b. A malformed block is
// for grpc-go, and a request without a content type for net/http.
func serverFor(b []byte) server {
	for len(b) > 0 {
		c := b[0]
		prefix := 4
		switch {
		case c&0x80 != 0:
			prefix = 7
		case c&0x40 != 0:
			prefix = 6
		case c&0x20 != 0: // a new size of the dynamic table
			prefix = 5
		}
		index, rest, ok := integer(b, prefix)
		if !ok {
			return byGRPC
		}
		named := index == staticContentType && prefix != 5
		if b = rest; prefix == 7 && named {
			return byHTTP // the value is empty
		}
		if prefix == 7 || prefix == 5 {
			continue
		}
		if index == 0 {
			name, coded, rest, ok := text(b)
			if !ok {
				return byGRPC
			}
			b, named = rest, name == plainName && !coded || name == codedName && coded
		}
		value, coded, rest, ok := text(b)
		if !ok {
			return byGRPC
		}
		if b = rest; named {
			return serverOf(value, coded)
		}
	}
	return byHTTP
}

// serverOf returns who serves requests with a content type: grpc-go if it is application/grpc, maybe
// with a codec or a parameter. coded says that it is in Huffman's code: there a semicolon is eight
// bits, and a plus the eleven bits 11111111011.
func serverOf(value string, coded bool) server {
	name := plainGRPC
	if coded {
		name = codedGRPC
	}
	rest, ok := strings.CutPrefix(value, name)
	switch {
	case !ok:
	case rest == "":
		return byGRPC
	case !coded && (rest[0] == '+' || rest[0] == ';'):
		return byGRPC
	case coded && (rest[0] == 0xfb || len(rest) > 1 && rest[0] == 0xff && rest[1]>>5 == 0b011):
		return byGRPC
	}
	return byHTTP
}

// integer decodes the integer at the start of b. bits is its number of bits in the first
// byte.
func integer(b []byte, bits int) (n int, rest []byte, ok bool) {
	most := 1<<bits - 1
	if len(b) == 0 {
		return 0, nil, false
	}
	if n = int(b[0]) & most; n < most {
		return n, b[1:], true
	}
	b = b[1:]
	for shift := 0; shift < 28; shift += 7 {
		if len(b) == 0 {
			return 0, nil, false
		}
		c := b[0]
		b = b[1:]
		n += int(c&0x7f) << shift
		if c < 0x80 {
			return n, b, true
		}
	}
	return 0, nil, false
}

// text returns the string at the start of b.
func text(b []byte) (s string, coded bool, rest []byte, ok bool) {
	n, after, ok := integer(b, 7)
	if !ok || n > len(after) {
		return "", false, nil, false
	}
	return string(after[:n]), b[0]&0x80 != 0, after[n:], true
}
