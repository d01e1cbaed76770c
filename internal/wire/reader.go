package wire

import (
	"encoding/binary"
	"fmt"
)

// A reader decodes the body of a frame. It keeps its first error, and after that returns zero
// values.
type reader struct {
	rest  []byte
	err   error
	wrong error // an error of the call only; decoding continues
	block block
}

// object records an error of the call. Unlike fail it does not stop decoding, so both sides keep
// the same table of names.
func (r *reader) object(format string, args ...any) {
	if r.wrong == nil {
		r.wrong = fmt.Errorf(format, args...)
	}
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = ProtocolError(format, args...)
	}
	r.rest = nil
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.rest)
	switch {
	case n == 0:
		r.fail("a frame ends early")
	case n < 0 || v > MaxUint:
		r.fail("a number is too large")
	case n > 1 && r.rest[n-1] == 0:
		r.fail("a number is not in its shortest form")
	default:
		r.rest = r.rest[n:]
		return v
	}
	return 0
}

// count decodes the number of elements that follow, each of at least minBytes bytes.
func (r *reader) count(minBytes int) int {
	n := r.uint()
	if n > uint64(len(r.rest)/minBytes) {
		r.fail("a frame ends early")
		return 0
	}
	return int(n)
}

// bytes decodes a byte string. The result aliases the frame.
func (r *reader) bytes() []byte {
	n := r.count(1)
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) string() string { return string(r.bytes()) }

// end fails if there are bytes left.
func (r *reader) end() error {
	if len(r.rest) > 0 {
		r.fail("%d bytes are left over at the end of a frame", len(r.rest))
	}
	return r.err
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
