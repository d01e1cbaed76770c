// Package wire turns the frames of docs/protocol.md into bytes and bytes into
// frames. It does nothing else: no I/O, no goroutine, no clock, and no state but
// the names that each direction of a connection has numbered.
//
// An [Encoder] and a [Decoder] are one direction's two ends. What the encoder
// appends to a buffer must be sent in that order; what the decoder is given
// arrived in that order.
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

// Bounds of the protocol, in bytes where nothing else is said.
const (
	MaxFrame  = 1<<16 - 1 // after the length
	MinWindow = 1 << 16   // of a call and of a connection; what is known before HELLO
	MinBlock  = 1 << 14   // the least that a receiver takes
	MinPlace  = 32 << 10  // of a message in a place of its own
	MaxUint   = 1<<62 - 1

	// MaxCredit is what credit adds up to at most, in bytes. It is more than an
	// int holds where addresses have 32 bits: credit is counted in int64.
	MaxCredit int64 = MaxUint + 1

	maxName  = 256      // of a name that is remembered
	maxTable = 64 << 10 // of what is remembered, as stringCost counts it

	lengthSize = 2
)

// stringCost is what a string counts for beside its own bytes: in the size of a
// block, where the key and the value of metadata count as one, and in the table
// of what a side remembers. It is the overhead that HTTP/2 counts for a field,
// and as in gRPC it belongs to what limits of headers limit. Without it a peer
// fills a receiver's memory with strings that take next to nothing on the wire.
const stringCost = 32

// FeatureNoCalls is the feature of a side that takes no calls of its peer's.
const FeatureNoCalls = 1 << 0

// MessageCost is the credit that a message takes beside its own bytes.
const MessageCost = 5

// A Kind says what a frame is. STREAM frames have flags in their kind.
type Kind byte

// The kinds.
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

// Stream reports whether k is that of a STREAM frame.
func (k Kind) Stream() bool { return k&KindStream != 0 }

// Ignorable reports whether a frame of kind k that is not known is skipped.
func (k Kind) Ignorable() bool { return k >= 0x40 && k < KindStream }

// A ResetCode is why a call was reset.
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

// A ByeCode is why a connection ends.
type ByeCode uint64

// The codes of BYE.
const (
	ByeDone ByeCode = iota
	ByeProtocol
	ByePings
	ByeClosed
	ByeVersion
)

// ErrProtocol is wrapped by the errors of whatever a peer must not send.
var ErrProtocol = errors.New("protocol error")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// A Frame is a frame as it came, its body not looked into.
type Frame struct {
	Kind   Kind
	Stream uint64
	Body   []byte // aliases what it was read from
}

// Next returns the first frame in b and how many bytes it takes. It returns 0
// and no error when b ends within it.
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
	if f.Stream >= 0x80 { // of more than a byte
		d := reader{rest: b[3:n:n]}
		f.Stream, f.Body = d.uint(), d.rest
		if d.err != nil {
			return Frame{}, 0, d.err
		}
	}
	return f, n, f.check()
}

// check looks at the stream's number.
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
