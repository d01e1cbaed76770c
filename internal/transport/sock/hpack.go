package sock

import "strings"

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
