package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// A Step is the next part of a call that one side sends. Append removes the appended parts from the
// Step. So the rest can follow later, when there is more credit or after other calls have had their
// turn.
type Step struct {
	Stream uint64

	// From the caller.
	Open      *link.CallHeader // begins the call
	Timeout   time.Duration    // until the deadline, if Open is set; 0 for none
	HalfClose bool

	// From the callee.
	Header metadata.MD // nil for none; may be empty
	End    *link.End

	// From either.
	HasMessage bool
	Message    []byte // the rest to append
	Compressed bool
	Begun      bool // the first piece was appended

	// Placed means that Message is empty and the message is in shared memory: Size bytes at Place.
	// Such a message takes as much credit as any other of its size, even if less is left.
	Placed      bool
	Place, Size int
}

// Done reports whether all of s was appended.
func (s *Step) Done() bool {
	return !s.hasHead() && !s.HasMessage && !s.HalfClose && s.End == nil
}

// Join merges next into s if one frame can hold both. It reports whether it did.
func (s *Step) Join(next *Step) bool {
	switch {
	case s.End != nil, s.HalfClose, // nothing may follow
		next.Open != nil,
		next.Header != nil && (s.hasHead() || s.HasMessage),
		next.HasMessage && s.HasMessage:
		return false
	}
	if next.Header != nil {
		s.Header = next.Header
	}
	if next.HasMessage {
		s.HasMessage, s.Message, s.Compressed = true, next.Message, next.Compressed
		s.Placed, s.Place, s.Size = next.Placed, next.Place, next.Size
	}
	s.HalfClose, s.End = next.HalfClose, next.End
	return true
}

// placeRoom is the maximum that a place takes in a frame, including the frame's header, in bytes.
const placeRoom = 2*9 + 12

func (s *Step) hasHead() bool { return s.Open != nil || s.Header != nil }

// Append appends as much of s as fits into one STREAM frame, after PARTs if its block is too long.
// A message that is not placed takes at most the argument credit. cost is the credit that it took.
// Append appends nothing if there is too little credit.
func (e *Encoder) Append(b []byte, s *Step, credit int) (out []byte, cost int) {
	out, tail, cost := e.AppendHead(b, s, credit)
	return append(out, tail...), cost
}

// LargePiece is the size from which AppendHead does not copy a piece of a message, in bytes.
const LargePiece = 8 << 10

// AppendHead is Append, but does not copy a large piece. If tail is not nil, it aliases the
// beginning of the old s.Message, and must be sent right after out.
func (e *Encoder) AppendHead(b []byte, s *Step, credit int) (out, tail []byte, cost int) {
	f := framing{e: e, s: s, b: b, start: len(b)}
	f.run(credit)
	if out = f.close(); len(f.tail) < LargePiece {
		return append(out, f.tail...), nil, f.cost
	}
	return out, f.tail, f.cost
}

// run appends the frame, except the piece of the message at its end, which it leaves in f.tail.
func (f *framing) run(credit int) {
	s := f.s
	if s.HasMessage {
		f.overhead = MessageCost
		if s.Begun {
			f.overhead = 0
		}
		f.piece = min(len(s.Message), credit-f.overhead)
	}
	f.finishes = !s.HasMessage || f.piece == len(s.Message)
	switch {
	case s.End != nil && f.finishes && f.whole():
	case s.hasHead() || s.HasMessage:
		if s.hasHead() {
			f.block(FlagHead, f.appendFirst)
			s.Open, s.Header = nil, nil
		}
		f.appendPiece()
	case s.End != nil:
		f.block(FlagEnd, f.appendEnd)
		s.End = nil
	}
	if s.HalfClose && !s.HasMessage {
		f.beginFrame(FlagEnd)
		s.HalfClose = false
	}
}

// A framing is a STREAM frame that is being appended.
type framing struct {
	e        *Encoder
	s        *Step
	b        []byte
	start    int    // offset of the frame in b
	flags    Kind   // zero until the frame has begun
	overhead int    // credit that the frame takes in addition to the piece's length
	piece    int    // how many bytes of the message the credit allows; may be negative
	finishes bool   // the piece is the rest of the message
	tail     []byte // the piece, to be sent after b
	cost     int
}

func (f *framing) beginFrame(flags Kind) {
	if f.flags == 0 {
		f.b = beginFrame(f.b, KindStream, f.s.Stream)
	}
	f.flags |= flags
}

func (f *framing) close() []byte {
	if f.flags == 0 {
		return f.b
	}
	f.b[f.start+lengthSize] = byte(KindStream | f.flags)
	binary.LittleEndian.PutUint16(f.b[f.start:], uint16(len(f.b)-f.start-lengthSize+len(f.tail)))
	return f.b
}

// room returns how many bytes the frame can still take; negative if it is too long.
func (f *framing) room() int { return f.start + lengthSize + MaxFrame - len(f.b) }

func (f *framing) appendFirst(b []byte, remember bool) []byte {
	if f.s.Open != nil {
		return f.e.appendHead(b, f.s.Open, f.s.Timeout, remember)
	}
	return f.e.appendMetadata(b, f.s.Header, remember)
}

func (f *framing) appendEnd(b []byte, remember bool) []byte {
	return f.e.appendEnd(b, f.s.End, remember)
}

// whole appends the rest of the step, if it fits into one frame. It reports whether it
// did.
func (f *framing) whole() bool {
	s, mark := f.s, f.e.mark()
	f.beginFrame(FlagEnd)
	if s.hasHead() {
		f.beginFrame(FlagHead)
		f.b = f.appendFirst(f.b, true)
	}
	f.b = f.appendEnd(f.b, true)
	need := len(s.Message)
	if s.Placed {
		need = placeRoom
	}
	if f.room() < need {
		f.e.forget(mark)
		f.b, f.flags = f.b[:f.start], 0
		return false
	}
	s.Open, s.Header, s.End = nil, nil, nil
	f.appendPiece()
	return true
}

// block appends a block, which write encodes, at the start of the frame. If the block is too
// long, block puts all but its last part into PARTs before the frame.
func (f *framing) block(flag Kind, write func(b []byte, remember bool) []byte) {
	mark := f.e.mark()
	f.beginFrame(flag)
	at := len(f.b)
	f.b = write(f.b, true)
	if f.room() >= 0 {
		return
	}
	f.e.forget(mark)
	long := write(nil, false)
	head := slices.Clone(f.b[f.start+lengthSize+1 : at]) // the stream id
	room := MaxFrame - 1 - len(head)
	f.b = f.b[:f.start]
	for len(long) > room {
		f.b = beginFrame(f.b, KindPart, f.s.Stream)
		f.b = finishFrame(append(f.b, long[:room]...), f.start)
		f.start, long = len(f.b), long[room:]
	}
	f.b = append(beginFrame(f.b, KindStream, f.s.Stream), long...)
}

// appendPiece appends as much of the message as room and credit allow.
func (f *framing) appendPiece() {
	s := f.s
	if !s.HasMessage || f.piece < min(len(s.Message), 1) {
		return
	}
	before, flags := len(f.b), f.flags
	if s.Placed {
		if f.room() >= placeRoom {
			f.beginFrame(FlagMessage | FlagPlace)
			f.b = binary.AppendUvarint(binary.AppendUvarint(f.b, uint64(s.Size)), uint64(s.Place))
			f.cost = f.overhead + s.Size
			s.HasMessage, s.Placed = false, false
		}
		return
	}
	if s.Begun {
		f.beginFrame(FlagPiece)
	} else {
		f.beginFrame(FlagMessage)
	}
	n := f.piece
	if n < len(s.Message) || n > f.room() {
		if !s.Begun {
			f.b = binary.AppendUvarint(f.b, uint64(len(s.Message)))
		}
		if n = min(n, f.room()); n <= 0 {
			f.b, f.flags = f.b[:before], flags
			return
		}
		if n < len(s.Message) {
			f.flags |= FlagMore
		}
	}
	if s.Compressed && !s.Begun {
		f.flags |= FlagCompressed
	}
	f.tail = s.Message[:n]
	f.cost = n + f.overhead
	s.Message, s.Begun = s.Message[n:], true
	if f.flags&FlagMore == 0 {
		s.HasMessage, s.Message, s.Begun = false, nil, false
	}
}

// noMetadata is the header of most calls. They share it, because nobody may write to a header
// that was received.
var noMetadata = metadata.MD{}

// maxPlaced is larger than any shared memory, in bytes. The credit of so large a message, plus a
// window, fits an int.
const maxPlaced = math.MaxInt / 2

// A Received is the decoded body of a STREAM frame. Data aliases the frame.
type Received struct {
	// From the caller.
	Open      *link.CallHeader // begins the call
	Timeout   time.Duration
	HalfClose bool

	// From the callee.
	Header metadata.MD // nil for none
	End    *link.End

	Begins     bool // a message begins
	Goes       bool // a further piece of a message
	More       bool // more pieces follow
	Compressed bool
	Size       int // of the whole message that begins, in bytes
	Data       []byte
	Placed     bool // the message is in shared memory at Place, and Data is empty
	Place      int

	// Wrong is an error of this call only; nil for none. The other fields are set even then, but
	// Open, Header and End may be incomplete.
	Wrong error
}

// Stream decodes a STREAM frame, from the caller of its call if fromCaller is set and otherwise
// from the callee. The parameter before holds the PARTs of the frame's block; it is nil if there
// are none. A returned error is a protocol error, which ends the connection. An error that ends
// only the call is in Received.Wrong.
func (d *Decoder) Stream(f Frame, before []byte, fromCaller bool) (Received, error) {
	flags := f.Kind &^ KindStream
	if flags == FlagMessage && before == nil { // fast path, because these frames cost a peer least
		return Received{Begins: true, Size: len(f.Body), Data: f.Body}, nil
	}
	message, piece, more := flags&FlagMessage != 0, flags&FlagPiece != 0, flags&FlagMore != 0
	block := flags&FlagHead != 0 || flags&FlagEnd != 0 && !fromCaller
	switch {
	case message && piece,
		piece && flags&FlagHead != 0,
		flags&FlagPlace != 0 && (!d.Places || !message || more || flags&FlagCompressed != 0),
		more && !message && !piece,
		more && flags&FlagEnd != 0,
		flags&FlagCompressed != 0 && !message,
		flags == 0:
		return Received{}, ProtocolError("a frame of a call has the flags %#x", byte(flags))
	case before != nil && !block:
		return Received{}, ProtocolError("parts of a block come before a frame that has none")
	}
	rc := Received{Begins: message, Goes: piece, More: more, Compressed: flags&FlagCompressed != 0}
	r := reader{rest: f.Body}
	remember := before == nil
	if !remember {
		r.rest = append(before, f.Body...)
	}
	if flags&FlagHead != 0 {
		if fromCaller {
			rc.Open, rc.Timeout = d.head(&r, remember)
		} else {
			r.beginBlock("header", d.Block)
			if rc.Header = d.metadata(&r, remember); rc.Header == nil {
				rc.Header = noMetadata
			}
		}
	}
	if flags&FlagEnd != 0 {
		if fromCaller {
			rc.HalfClose = true
		} else {
			rc.End = d.end(&r, remember)
		}
	}
	if message && more {
		rc.Size = clamp(r.uint())
	}
	if flags&FlagPlace != 0 {
		rc.Placed, rc.Size, rc.Place = true, min(clamp(r.uint()), maxPlaced), clamp(r.uint())
		if r.end() == nil && rc.Size < MinPlace {
			r.fail("a message of %d bytes is in shared memory, which takes %d at least", rc.Size, MinPlace)
		}
	}
	switch {
	case r.err != nil, rc.Placed:
	case message && !more:
		rc.Size = len(r.rest)
	case message && rc.Size <= len(r.rest):
		r.fail("a message of %d bytes goes on after %d", rc.Size, len(r.rest))
	case !message && !piece:
		_ = r.end()
	}
	if (piece || more) && len(r.rest) == 0 {
		r.fail("a piece of a message is empty")
	}
	if r.err != nil {
		return Received{}, r.err
	}
	if message || piece {
		rc.Data = r.rest
	}
	rc.Wrong = r.wrong
	return rc, nil
}

// Plain frames.
//
// A plain frame is a STREAM frame with a whole message that is not compressed, and nothing else.
// Streams of small messages consist of these frames, so both sides handle many at a time.

// Plain splits the first frame off b if it is plain. n is the frame's length, or 0 if the first
// frame is not plain or not complete. The message aliases b.
func Plain(b []byte) (stream uint64, message []byte, n int) {
	if len(b) <= lengthSize || Kind(b[lengthSize]) != KindStream|FlagMessage {
		return 0, nil, 0
	}
	f, n, err := Next(b)
	if err != nil {
		return 0, nil, 0
	}
	return f.Stream, f.Body, n
}

// BeginPlain appends the head of a plain frame. The caller appends the message after it, and then
// calls [EndPlain] with the offset of the frame.
func BeginPlain(b []byte, stream uint64) []byte {
	return beginFrame(b, KindStream|FlagMessage, stream)
}

// EndPlain ends the plain frame that begins at the offset at and is the last in b. The frame must
// not be longer than MaxFrame.
func EndPlain(b []byte, at int) { finishFrame(b, at) }
