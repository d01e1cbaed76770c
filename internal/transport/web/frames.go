package web

import (
	"encoding/binary"
	"slices"
)

// Frames of HTTP/2 (RFC 9113).
const (
	preface   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHead = 9 // the head of a frame, in bytes

	frameData     = 0
	frameHeaders  = 1
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7

	flagAck = 1 // of SETTINGS and PING

	settingSize     = 6 // in bytes
	headerTableSize = 1 // a setting

	noError         = 0
	enhanceYourCalm = 11

	noStream  = 0
	maxStream = 1<<31 - 1
)

func payloadSize(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

func streamOf(head []byte) uint32 { return binary.BigEndian.Uint32(head[5:]) & maxStream }

// frame returns a frame of the connection.
func frame(kind byte, payload []byte) []byte {
	n := len(payload)
	return append([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0, 0, 0, 0, noStream}, payload...)
}

// goAway returns the GOAWAY frame: no stream after last will be answered. why is the reason.
func goAway(last, code uint32, why string) []byte {
	payload := binary.BigEndian.AppendUint32(nil, last)
	return frame(frameGoAway, append(binary.BigEndian.AppendUint32(payload, code), why...))
}

// settingsFor returns the SETTINGS frame that package http gets for a client's. The first sets the
// client's table for decoding header blocks to size 0. Later ones do not mention the table.
//
// Package http sets the size of its encoder's table when SETTINGS come, while another goroutine may
// be encoding: a client that changes the size during answers would end the process. Every client
// accepts a table of size 0.
func settingsFor(client []byte, first bool) []byte {
	head, payload := client[:frameHead], client[frameHead:]
	var kept []byte
	if first {
		kept = []byte{0, headerTableSize, 0, 0, 0, 0}
	}
	for s := range slices.Chunk(payload, settingSize) {
		if binary.BigEndian.Uint16(s) != headerTableSize {
			kept = append(kept, s...)
		}
	}
	f := frame(frameSettings, kept)
	copy(f[frameSettings:], head[frameSettings:]) // flags and stream
	return f
}

// A cursor follows frames whose bytes come in pieces. The zero value is at the beginning.
type cursor struct {
	head  [frameHead]byte // of the frame, as far as it has arrived
	have  int             // how much of head has arrived
	rest  int             // how many bytes of the payload are missing
	begun bool            // a frame has come
}

// step moves over the bytes in b of one head or one payload. It returns how many. whole says
// that a head is complete now. b must not be empty.
func (c *cursor) step(b []byte) (n int, whole bool) {
	if c.rest > 0 {
		n = min(c.rest, len(b))
		c.rest -= n
		return n, false
	}
	n = copy(c.head[c.have:], b)
	if c.have += n; c.have < frameHead {
		return n, false
	}
	c.have, c.rest, c.begun = 0, payloadSize(c.head[:]), true
	return n, true
}

// move moves over b. It reports whether heads of frames of calls and of GOAWAY end in b.
func (c *cursor) move(b []byte) (speaks, leaves bool) {
	for len(b) > 0 {
		n, whole := c.step(b)
		b = b[n:]
		if whole {
			kind := c.head[3]
			speaks = speaks || kind == frameData || kind == frameHeaders
			leaves = leaves || kind == frameGoAway
		}
	}
	return speaks, leaves
}

// between reports whether the cursor is between two frames.
func (c *cursor) between() bool { return c.begun && c.rest == 0 && c.have == 0 }

// toNext returns how many bytes of b belong to the current frame: all if b does not reach the
// next frame.
func (c *cursor) toNext(b []byte) (n int) {
	ahead := *c
	for n < len(b) && !ahead.between() {
		m, _ := ahead.step(b[n:])
		n += m
	}
	return n
}
