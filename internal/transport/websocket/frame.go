package websocket

import (
	"encoding/binary"
	"fmt"
	"math"
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

// A reader parses the frames of a WebSocket. Bytes can come in pieces of any size.
type reader struct {
	client bool // this side is the client, so the peer's frames are not masked

	header     [maxHeader]byte
	have       int    // bytes of the header that have arrived
	left       uint64 // bytes of the frame's payload that have not arrived; 0 between frames
	mask       uint32 // for the rest
	op         opcode // of the frame
	unfinished bool   // the last data frame was not the final one of its message
	control    []byte // payload of a control frame

	ping   []byte // payload of the last PING, if pinged
	pinged bool
	err    error // a *violation, or a *CloseError once a Close frame has arrived
}

// A CloseError is the end of a connection by the peer's Close frame.
type CloseError struct {
	Code   CloseCode
	Reason string
}

func (e *CloseError) Error() string {
	if e.Code == closeNone {
		return "the peer closed the WebSocket"
	}
	if e.Reason == "" {
		return fmt.Sprintf("the peer closed the WebSocket with code %d", e.Code)
	}
	return fmt.Sprintf("the peer closed the WebSocket with code %d: %q", e.Code, e.Reason)
}

// payload moves the payload of data frames in b to the front of b, and returns its length. With an
// error it returns the payload that came before the mistake. After an error nothing more can be
// read.
func (r *reader) payload(b []byte) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	n, r.err = r.take(b)
	return n, r.err
}

func (r *reader) take(b []byte) (n int, err error) {
	for in := 0; in < len(b); {
		if r.left == 0 {
			in += r.fillHeader(b[in:])
			if r.have < 2 || r.have < headerLen(r.header[:]) {
				return n, nil
			}
			r.have = 0
			if err := r.begin(); err != nil {
				return n, err
			}
		}
		p := b[in : in+int(min(uint64(len(b)-in), r.left))]
		in += len(p)
		r.left -= uint64(len(p))
		if !r.client {
			r.mask = xor(p, r.mask)
		}
		if !r.op.isControl() {
			n += copy(b[n:], p)
			continue
		}
		r.control = append(r.control, p...)
		if r.left == 0 {
			if err := r.handleControl(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// fillHeader adds bytes of b to the header, and returns how many.
func (r *reader) fillHeader(b []byte) (taken int) {
	if r.have < 2 {
		taken = copy(r.header[r.have:2], b)
		r.have += taken
	}
	if r.have >= 2 {
		k := copy(r.header[r.have:headerLen(r.header[:])], b[taken:])
		r.have += k
		taken += k
	}
	return taken
}

// begin begins the frame of the header.
func (r *reader) begin() error {
	h := r.header[:]
	final, masked, n := h[0]&flagFinal != 0, h[1]&flagMasked != 0, uint64(h[1]&^flagMasked)
	r.op = opcode(h[0] & 0xf)
	h = h[2:]
	switch n {
	case 126:
		n = uint64(binary.BigEndian.Uint16(h))
		h = h[2:]
	case 127:
		n = binary.BigEndian.Uint64(h)
		h = h[8:]
	}
	switch {
	case r.header[0]&flagReserved != 0:
		return violates(closeProtocol, "a frame has reserved bits set, and no extension was negotiated")
	case masked == r.client && masked:
		return violates(closeProtocol, "the server masks its frames")
	case masked == r.client:
		return violates(closeProtocol, "the client does not mask its frames")
	case n > math.MaxInt64:
		return violates(closeProtocol, "a frame of %d bytes", n)
	}
	if masked {
		r.mask = binary.LittleEndian.Uint32(h)
	}
	r.left = n
	switch r.op {
	case opContinuation:
		if !r.unfinished {
			return violates(closeProtocol, "a continuation frame continues no message")
		}
		r.unfinished = !final
		return nil
	case opBinary:
		if r.unfinished {
			return violates(closeProtocol, "a message begins in the middle of another")
		}
		r.unfinished = !final
		return nil
	case opText:
		return violates(closeText, "a text message: nearcall's messages are binary")
	case opClose, opPing, opPong:
		if !final || n > maxControl {
			return violates(closeProtocol, "a control frame is fragmented or longer than %d bytes", maxControl)
		}
		r.control = r.control[:0]
		if n == 0 {
			return r.handleControl()
		}
		return nil
	}
	return violates(closeProtocol, "a frame of the unknown kind %d", r.op)
}

// handleControl handles a control frame whose payload is complete. A PING replaces an unanswered
// earlier PING: section 5.5.3 of RFC 6455 allows that.
func (r *reader) handleControl() error {
	switch r.op {
	case opPing:
		r.ping, r.pinged = append(r.ping[:0], r.control...), true
	case opClose:
		c := &CloseError{Code: closeNone}
		switch {
		case len(r.control) == 1:
			return violates(closeProtocol, "a Close frame with half a code")
		case len(r.control) > 1:
			c.Code, c.Reason = CloseCode(binary.BigEndian.Uint16(r.control)), string(r.control[2:])
			if !c.Code.maySend() {
				return violates(closeProtocol, "a Close frame with the code %d", c.Code)
			}
		}
		return c
	}
	return nil
}
