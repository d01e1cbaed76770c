package websocket

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/nearcall/nearcall/internal/wire"
)

// An opcode is the kind of a frame: section 5.2 of RFC 6455.
type opcode byte

const (
	opContinuation opcode = 0
	opText         opcode = 1
	opBinary       opcode = 2
	opClose        opcode = 8
	opPing         opcode = 9
	opPong         opcode = 10
)

// isControl reports whether frames of the kind may come between the frames of a message.
func (o opcode) isControl() bool { return o >= 8 }

const (
	flagFinal    = 0x80 // in the first byte
	flagReserved = 0x70 // in the first byte; used only by extensions, of which none is negotiated
	flagMasked   = 0x80 // in the second byte

	maxHeader  = 14  // bytes
	maxControl = 125 // bytes of a control frame's payload
)

// A CloseCode says why a side closes: section 7.4.1 of RFC 6455.
type CloseCode uint16

const (
	closeNormal   CloseCode = 1000
	closeProtocol CloseCode = 1002
	closeText     CloseCode = 1003
	closeNone     CloseCode = 1005 // stands for a Close frame without a code; never sent
)

// maySend reports whether a Close frame can have the code: section 7.4 of RFC 6455, and the
// codes that were registered since.
func (c CloseCode) maySend() bool {
	return 1000 <= c && c <= 1003 || 1007 <= c && c <= 1014 || 3000 <= c && c <= 4999
}

// A violation is the error of a peer that does not follow RFC 6455, or sends text.
type violation struct {
	code CloseCode // the code of the Close frame
	text string
}

func (v *violation) Error() string { return "websocket: " + v.text }

// Unwrap makes the session say BYE before it closes.
func (v *violation) Unwrap() error { return wire.ErrProtocol }

func violates(code CloseCode, format string, args ...any) error {
	return &violation{code, fmt.Sprintf(format, args...)}
}

// appendHeader appends the header of a final frame with n bytes of payload, without a mask.
func appendHeader(b []byte, op opcode, n int) []byte {
	b = append(b, flagFinal|byte(op))
	switch {
	case n <= maxControl:
		return append(b, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
}

// headerLen returns the length of a header that begins with the first two bytes of h.
func headerLen(h []byte) int {
	n := 2
	switch h[1] &^ flagMasked {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if h[1]&flagMasked != 0 {
		n += 4
	}
	return n
}

// xor masks b, or unmasks it, and returns the mask for the bytes after b. The lowest byte of a
// mask is for the first byte.
func xor(b []byte, mask uint32) uint32 {
	if mask == 0 {
		return 0
	}
	k := uint64(mask)<<32 | uint64(mask)
	for ; len(b) >= 32; b = b[32:] {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^k)
		binary.LittleEndian.PutUint64(b[8:], binary.LittleEndian.Uint64(b[8:])^k)
		binary.LittleEndian.PutUint64(b[16:], binary.LittleEndian.Uint64(b[16:])^k)
		binary.LittleEndian.PutUint64(b[24:], binary.LittleEndian.Uint64(b[24:])^k)
	}
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)^k)
	}
	for i := range b {
		b[i] ^= byte(mask)
		mask = bits.RotateLeft32(mask, -8)
	}
	return mask
}
