package sock

import "encoding/binary"

// Frames of HTTP/2 (RFC 9113).
const (
	FrameHead   = 9 // the head of a frame, in bytes
	SettingSize = 6 // of SETTINGS, in bytes
	pingSize    = 8 // of PING, in bytes

	FrameData         = 0
	FrameHeaders      = 1
	framePriority     = 2
	FrameSettings     = 4
	FramePing         = 6
	FrameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9

	FlagAck      = 1    // of SETTINGS and PING
	flagHeaders  = 4    // END_HEADERS
	flagPadded   = 8    // of HEADERS
	flagPriority = 0x20 // of HEADERS

	NoError = 0 // of GOAWAY
)

// PayloadSize returns the size of the payload of the frame that begins with head.
func PayloadSize(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

// AppendFrame appends a frame of the connection.
func AppendFrame(b []byte, kind, flags byte, payload []byte) []byte {
	n := len(payload)
	return append(append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags, 0, 0, 0, 0), payload...)
}

// AppendGoAway appends the frame that tells a client that no stream after last will be answered, and why.
func AppendGoAway(b []byte, last, code uint32, why string) []byte {
	payload := binary.BigEndian.AppendUint32(nil, last)
	return AppendFrame(b, FrameGoAway, 0, append(binary.BigEndian.AppendUint32(payload, code), why...))
}

// A Cursor follows frames whose bytes come in pieces. The zero value is at the beginning.
type Cursor struct {
	Head  [FrameHead]byte // of the frame, as far as it has come
	have  int             // how much of Head has come
	rest  int             // how many bytes of the payload are still to come
	begun bool            // a frame has come
}

// Step moves over bytes of one head or one payload, of those in b. It returns how many. whole says
// that a head is complete now. b must not be empty.
func (c *Cursor) Step(b []byte) (n int, whole bool) {
	if c.rest > 0 {
		n = min(c.rest, len(b))
		c.rest -= n
		return n, false
	}
	n = copy(c.Head[c.have:], b)
	if c.have += n; c.have < FrameHead {
		return n, false
	}
	c.have, c.rest, c.begun = 0, PayloadSize(c.Head[:]), true
	return n, true
}

// Between reports whether the cursor is behind a frame.
func (c *Cursor) Between() bool { return c.begun && c.rest == 0 && c.have == 0 }
