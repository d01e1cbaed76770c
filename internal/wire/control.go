package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// beginFrame appends the header of a frame. finishFrame fills in its length.
func beginFrame(b []byte, k Kind, stream uint64) []byte {
	return binary.AppendUvarint(append(b, 0, 0, byte(k)), stream)
}

// finishFrame fills in the length of the frame that begins at start.
func finishFrame(b []byte, start int) []byte {
	binary.LittleEndian.PutUint16(b[start:], uint16(len(b)-start-lengthSize))
	return b
}

// A Hello is the first frame of each side.
type Hello struct {
	Version    uint64
	Features   uint64
	Stream     int64 // window of each call, in bytes
	Connection int64 // window of all calls together, in bytes
	Calls      uint64
	Block      int    // the largest block that is accepted, as HeadSize counts
	Ping       uint64 // minimum time between PINGs while a call is open, in milliseconds
	IdlePing   uint64 // the same while no call is open
	Near       string `json:",omitempty"` // a server's offer of a nearer path; only with FeatureNear
}

// AppendHello appends a HELLO.
func AppendHello(b []byte, h *Hello) []byte {
	start := len(b)
	b = beginFrame(b, KindHello, 0)
	for _, v := range [...]uint64{h.Version, h.Features, uint64(h.Stream), uint64(h.Connection), h.Calls, uint64(h.Block), h.Ping, h.IdlePing} {
		b = binary.AppendUvarint(b, v)
	}
	if h.Features&FeatureNear != 0 {
		b = appendString(b, h.Near)
	}
	return finishFrame(b, start)
}

// ParseHello decodes the body of a HELLO.
func ParseHello(body []byte) (h Hello, err error) {
	r := reader{rest: body}
	h.Version, h.Features = r.uint(), r.uint()
	stream, connection := r.uint(), r.uint()
	h.Calls = r.uint()
	block := r.uint()
	h.Ping, h.IdlePing = r.uint(), r.uint()
	if h.Features&FeatureNear != 0 {
		h.Near = r.string()
	}
	switch { // further fields belong to later versions
	case r.err != nil:
	case h.Version == 0:
		r.fail("version 0")
	case stream < MinWindow || connection < MinWindow:
		r.fail("windows of %d and %d bytes, at least %d are due", stream, connection, MinWindow)
	case block < MinBlock:
		r.fail("blocks of %d bytes, at least %d are due", block, MinBlock)
	}
	if r.err != nil {
		return Hello{}, r.err
	}
	h.Stream, h.Connection, h.Block = int64(stream), int64(connection), clamp(block)
	return h, nil
}

// clamp returns v as an int, or the largest int if v is larger.
func clamp(v uint64) int { return int(min(v, math.MaxInt)) }

// AppendReset appends a RESET. Text longer than maxText is truncated.
func AppendReset(b []byte, stream uint64, code ResetCode, text string) []byte {
	return appendCode(b, KindReset, stream, uint64(code), text)
}

// ParseReset decodes the body of a RESET.
func ParseReset(body []byte) (code ResetCode, text string, err error) {
	c, text, err := parseCode(body)
	return ResetCode(c), text, err
}

// AppendBye appends a BYE. Text longer than maxText is truncated.
func AppendBye(b []byte, code ByeCode, text string) []byte {
	return appendCode(b, KindBye, 0, uint64(code), text)
}

// ParseBye decodes the body of a BYE.
func ParseBye(body []byte) (code ByeCode, text string, err error) {
	c, text, err := parseCode(body)
	return ByeCode(c), text, err
}

// maxText is the most text that AppendReset and AppendBye put into a frame, in bytes.
const maxText = 4096

func appendCode(b []byte, k Kind, stream, code uint64, text string) []byte {
	start := len(b)
	b = binary.AppendUvarint(beginFrame(b, k, stream), code)
	if len(text) > maxText {
		cut := maxText
		for cut > maxText-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return finishFrame(append(b, text...), start)
}

func parseCode(body []byte) (code uint64, text string, err error) {
	r := reader{rest: body}
	code = r.uint()
	return code, string(r.rest), r.err
}

// AppendCredit appends a CREDIT of n bytes for a call, or for the connection if stream is 0.
func AppendCredit(b []byte, stream uint64, n int64) []byte {
	start := len(b)
	return finishFrame(binary.AppendUvarint(beginFrame(b, KindCredit, stream), uint64(n)), start)
}

// ParseCredit decodes the body of a CREDIT.
func ParseCredit(body []byte) (n int64, err error) {
	r := reader{rest: body}
	v := r.uint()
	if v == 0 {
		r.fail("a credit of nothing")
	}
	if err := r.end(); err != nil {
		return 0, err
	}
	return int64(v), nil
}

// AppendReturn appends a RETURN for the message at the given place.
func AppendReturn(b []byte, place int) []byte {
	start := len(b)
	return finishFrame(binary.AppendUvarint(beginFrame(b, KindReturn, 0), uint64(place)), start)
}

// ParseReturn decodes the body of a RETURN.
func ParseReturn(body []byte) (place int, err error) {
	r := reader{rest: body}
	place = clamp(r.uint())
	return place, r.end()
}

// AppendStay appends a STAY.
func AppendStay(b []byte) []byte {
	start := len(b)
	return finishFrame(beginFrame(b, KindStay, 0), start)
}

// AppendPing appends a PING or a PONG.
func AppendPing(b []byte, k Kind, data [8]byte) []byte {
	start := len(b)
	return finishFrame(append(beginFrame(b, k, 0), data[:]...), start)
}

// ParsePing decodes the body of a PING or a PONG.
func ParsePing(body []byte) (data [8]byte, err error) {
	if len(body) != len(data) {
		return data, ProtocolError("a ping of %d bytes", len(body))
	}
	return [8]byte(body), nil
}

// AppendDrain appends a DRAIN. last is the last call that was seen, or NoLast.
func AppendDrain(b []byte, last uint64) []byte {
	start := len(b)
	return finishFrame(binary.AppendUvarint(beginFrame(b, KindDrain, 0), last), start)
}

// ParseDrain decodes the body of a DRAIN.
func ParseDrain(body []byte) (last uint64, err error) {
	r := reader{rest: body}
	last = r.uint()
	return last, r.end()
}
