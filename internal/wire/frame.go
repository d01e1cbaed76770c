package wire

import "encoding/binary"

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
