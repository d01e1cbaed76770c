package wire

import (
	"encoding/binary"
	"fmt"
)

// A Kind is the kind of a frame. For STREAM frames it includes the flags.
type Kind byte

// The kinds of frames.
const (
	KindHello  Kind = 0x01
	KindPart   Kind = 0x02
	KindReset  Kind = 0x03
	KindCredit Kind = 0x04
	KindPing   Kind = 0x05
	KindPong   Kind = 0x06
	KindDrain  Kind = 0x07
	KindBye    Kind = 0x08
	KindReturn Kind = 0x09
	KindStay   Kind = 0x40 // an extension, which this package ignores like any other
	KindStream Kind = 0x80
)

// The flags of a STREAM frame.
const (
	FlagHead Kind = 1 << iota
	FlagMessage
	FlagPiece
	FlagMore
	FlagEnd
	FlagCompressed
	FlagPlace
)

// Stream reports whether k is the kind of a STREAM frame.
func (k Kind) Stream() bool { return k&KindStream != 0 }

// Ignorable reports whether frames of kind k are extensions, which are ignored.
func (k Kind) Ignorable() bool { return k >= 0x40 && k < KindStream }

// A Frame is a frame whose body has not been decoded.
type Frame struct {
	Kind   Kind
	Stream uint64
	Body   []byte // aliases the input
}

// Next splits the first frame off b. n is the frame's length, or 0 without an error if
// b does not hold all of it.
func Next(b []byte) (f Frame, n int, err error) {
	if len(b) < lengthSize {
		return f, 0, nil
	}
	length := int(binary.LittleEndian.Uint16(b))
	if length < 2 {
		return f, 0, ProtocolError("a frame of length %d", length)
	}
	n = lengthSize + length
	if len(b) < n {
		return f, 0, nil
	}
	f.Kind, f.Stream, f.Body = Kind(b[2]), uint64(b[3]), b[4:n:n]
	if f.Stream >= 0x80 { // a stream id of more than one byte
		d := reader{rest: b[3:n:n]}
		f.Stream, f.Body = d.uint(), d.rest
		if d.err != nil {
			return Frame{}, 0, d.err
		}
	}
	return f, n, f.check()
}

// check checks the kind, and whether it allows the stream id.
func (f Frame) check() error {
	var ofCall bool
	switch k := f.Kind; {
	case k.Stream(), k == KindReset, k == KindPart:
		ofCall = true
	case k == KindCredit, k.Ignorable():
		return nil
	case k < KindHello || k > KindReturn:
		return ProtocolError("a frame of kind %#x", byte(k))
	}
	if ofCall != (f.Stream != 0) {
		return ProtocolError("a frame of kind %#x has the stream %d", byte(f.Kind), f.Stream)
	}
	return nil
}

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
