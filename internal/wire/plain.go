package wire

import "encoding/binary"

// Plain frames.
//
// A plain frame is a STREAM frame with a whole message that is not compressed, and nothing else.
// Streams of small messages consist of these frames, so both sides handle many at a time.

// Plain splits the first frame off b if it is plain. n is the frame's length, or 0 if the first
// frame is not plain or not complete. The message aliases b.
func Plain(b []byte) (stream uint64, message []byte, n int) {
	const head = lengthSize + 2 // with a stream id of one byte
	if len(b) < head || Kind(b[lengthSize]) != KindStream|FlagMessage {
		return 0, nil, 0
	}
	n = lengthSize + int(binary.LittleEndian.Uint16(b))
	if n < head || len(b) < n {
		return 0, nil, 0
	}
	if stream = uint64(b[head-1]); stream < 0x80 {
		message = b[head:n:n]
	} else {
		d := reader{rest: b[head-1 : n : n]}
		if stream, message = d.uint(), d.rest; d.err != nil {
			return 0, nil, 0
		}
	}
	if stream == 0 {
		return 0, nil, 0
	}
	return stream, message, n
}

// BeginPlain appends the head of a plain frame. The caller appends the message after it, and then
// calls [EndPlain] with the offset of the frame.
func BeginPlain(b []byte, stream uint64) []byte {
	return beginFrame(b, KindStream|FlagMessage, stream)
}

// EndPlain ends the plain frame that begins at the offset at and is the last in b. The frame must
// not be longer than MaxFrame.
func EndPlain(b []byte, at int) { finishFrame(b, at) }
