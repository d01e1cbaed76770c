// Package wire encodes and decodes the frames of docs/protocol.md. It does no I/O, starts no
// goroutines and reads no clock. Its only state is a table of numbered names for each direction
// of a connection.
//
// An [Encoder] and a [Decoder] are the two ends of one direction. Frames must be sent
// in the order in which the encoder appended them, and passed to the decoder in the
// order in which they arrived.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Magic is the line that each side of a connection begins with.
const Magic = "nearcall/1\n"

// Version is the highest version of the protocol that this package speaks.
const Version = 1

// Limits of the protocol, in bytes unless stated otherwise.
const (
	MaxFrame  = 1<<16 - 1 // without the length field
	MinWindow = 1 << 16   // of a call and of a connection; both apply until HELLO arrives
	MinBlock  = 1 << 14   // the smallest limit that a receiver may set
	MinPlace  = 32 << 10  // the minimum size of a message in shared memory
	MaxUint   = 1<<62 - 1
	NoLast    = 1 << 53 // in a DRAIN, last is NoLast or more if the last call is not known yet

	// MaxCredit bounds the credit that a call or connection accumulates, in bytes. On 32-bit
	// systems it does not fit an int, so credit is an int64.
	MaxCredit int64 = MaxUint + 1

	maxName  = 256      // of a name in the table
	maxTable = 64 << 10 // of the whole table, as stringCost counts

	lengthSize = 2
)

// stringCost is what each string counts in addition to its length, in bytes: in the size of a
// block, where the key and value of a metadata entry count as one string, and in the table of
// names. It is HTTP/2's overhead for a header field, and counts against limits of headers as in
// gRPC. Without it a peer could exhaust a receiver's memory with strings that take almost no
// bytes on the wire.
const stringCost = 32

// FeatureNoCalls is set in HELLO by a side that accepts no calls.
const FeatureNoCalls = 1 << 0

// MessageCost is the credit that a message takes in addition to its length, in bytes.
const MessageCost = 5

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

// A ResetCode says why a call was reset.
type ResetCode uint64

// The codes of RESET.
const (
	ResetCancelled ResetCode = iota
	ResetDeadline
	ResetUnprocessed
	ResetUnavailable
	ResetProtocol
	ResetExhausted
)

// A ByeCode says why a connection ends.
type ByeCode uint64

// The codes of BYE.
const (
	ByeDone ByeCode = iota
	ByeProtocol
	ByePings
	ByeClosed
	ByeVersion
)

// ErrProtocol is wrapped by all errors for violations of the protocol by the peer.
var ErrProtocol = errors.New("protocol error")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

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
		return f, 0, protocolError("a frame of length %d", length)
	}
	n = lengthSize + length
	if len(b) < n {
		return f, 0, nil
	}
	f.Kind, f.Stream = Kind(b[2]), uint64(b[3])
	f.Body = b[4:n:n]
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
		return protocolError("a frame of kind %#x", byte(k))
	}
	if ofCall != (f.Stream != 0) {
		return protocolError("a frame of kind %#x has the stream %d", byte(f.Kind), f.Stream)
	}
	return nil
}
