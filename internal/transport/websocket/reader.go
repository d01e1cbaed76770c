package websocket

import (
	"encoding/binary"
	"fmt"
	"math"
)

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
