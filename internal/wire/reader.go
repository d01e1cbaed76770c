package wire

import "fmt"

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
		r.err = protocolError(format, args...)
	}
	r.rest = nil
}

func (r *reader) uint() uint64 {
	var v uint64
	for i, b := range r.rest {
		if i == 9 {
			break
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			if v > MaxUint {
				break
			}
			if b == 0 && i > 0 {
				r.fail("a number is not in its shortest form")
				return 0
			}
			r.rest = r.rest[i+1:]
			return v
		}
	}
	if len(r.rest) < 9 {
		r.fail("a frame ends early")
	} else {
		r.fail("a number is too large")
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

func appendUint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendString(b []byte, s string) []byte { return append(appendUint(b, uint64(len(s))), s...) }

// is reads a string and reports whether it is s.
func (r *reader) is(s string) bool { return string(r.bytes()) == s && r.err == nil }
