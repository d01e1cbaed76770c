// Package wire encodes and decodes the frames of docs/protocol.md. It does no I/O, starts no
// goroutines and reads no clock. Its only state is a table of numbered names for each direction
// of a connection.
//
// An [Encoder] and a [Decoder] are the two ends of one direction. Frames must be sent in the order
// in which the encoder appended them, and passed to the decoder in the order in which they arrived.
package wire

import (
	"errors"
	"fmt"
)

// Magic is the line that each side of a connection begins with.
const Magic = "nearcall/1\n"

// ALPN is the name of the protocol in the handshake of TLS.
const ALPN = "nearcall/1"

// A client that does not know whether its server speaks the protocol begins with the question. A
// server of HTTP/2 ignores its setting, and a server of nearcall answers with the line Answer. The
// connection then goes on as if nothing had been sent.
const (
	Preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // of HTTP/2
	Setting  = "\x6e\x63\x00\x00\x00\x01"         // 0x6e63 is 1
	Question = Preface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + Setting
	Answer   = "nearcall\n"
)

// Version is the highest version of the protocol that this package speaks.
const Version = 1

// Limits of the protocol, in bytes if nothing else is said.
const (
	MaxFrame  = 1<<16 - 1 // without the length field
	MinWindow = 1 << 16   // of a call and of a connection; also their windows until HELLO arrives
	MinBlock  = 1 << 14   // the smallest limit that a receiver may set
	MinPlace  = 32 << 10  // the minimum size of a message in shared memory
	MaxUint   = 1<<62 - 1
	NoLast    = 1 << 53 // a DRAIN with NoLast or a higher number does not name the last call yet

	// MaxCredit bounds the credit that a call or connection accumulates, in bytes. On 32-bit
	// systems it does not fit an int, so credit is an int64.
	MaxCredit int64 = MaxUint + 1

	maxName  = 256      // of a name in the table
	maxTable = 64 << 10 // of the whole table, with stringCost for each string

	lengthSize = 2
)

// stringCost is added to the length of each string, in bytes, in the size of a block and of the
// table of names. In a block, the key and value of a metadata entry count as one string. The value
// is HTTP/2's overhead for a header field, and counts against limits of headers as in gRPC. Without
// it a peer could exhaust a receiver's memory with strings that take almost no bytes on the wire.
const stringCost = 32

// The features of HELLO.
const (
	FeatureNoCalls = 1 << 0 // the side accepts no calls
	FeatureNear    = 1 << 1 // a client takes an offer of a nearer path, a server makes one
)

// MessageCost is the credit that a message takes in addition to its length, in bytes.
const MessageCost = 5

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

// ProtocolError returns an error for a violation of the protocol by the peer.
func ProtocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
