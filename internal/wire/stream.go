package wire

import (
	"encoding/binary"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/nearcall/nearcall/internal/link"
)

// A Step is what one side does next in a call. What of it has been appended to
// a buffer it forgets, so that what is left can follow later: when there is
// more credit, and when other calls have had their turn.
type Step struct {
	Stream uint64

	// From the caller.
	Open      *link.CallHeader // opens the call
	Timeout   time.Duration    // until the deadline, with Open; 0 for none
	HalfClose bool

	// From the callee.
	Header metadata.MD // nil for none; empty is one, too
	End    *link.End

	// A message of either.
	HasMessage bool
	Message    []byte // what is left of it
	Compressed bool
	begun      bool // the first piece was appended

	// Placed says that Message is empty, and the message where the peer sees it
	// without the connection: Size bytes at Place. It takes as much credit as
	// any, but may take more than there is.
	Placed      bool
	Place, Size int
}

// Done reports whether nothing is left of s.
func (s *Step) Done() bool {
	return !s.hasHead() && !s.HasMessage && !s.HalfClose && s.End == nil
}

// Begun reports whether a piece of the message was appended, and the rest was
// not.
func (s *Step) Begun() bool { return s.begun }

// Join adds next to s, if the two can be one frame. It reports whether it did.
func (s *Step) Join(next *Step) bool {
	switch {
	case s.End != nil, s.HalfClose, // nothing follows
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

// placeRoom is how many bytes a place takes in a frame at most, with the frame's
// head where it begins one.
const placeRoom = 2*9 + 12

func (s *Step) placeRoom() int {
	if s.Placed {
		return placeRoom
	}
	return 0
}

func (s *Step) hasHead() bool { return s.Open != nil || s.Header != nil }

// Append appends as much of s as fits into one frame, before which PARTs of its
// block may go. It takes no more credit for the message than there is, and
// returns what it took. Where it appends nothing, credit is missing.
func (e *Encoder) Append(b []byte, s *Step, credit int) (out []byte, cost int) {
	f := framing{e: e, s: s, b: b, start: len(b)}
	f.run(credit)
	return append(f.close(), f.tail...), f.cost
}

// LargePiece is from what length on AppendHead leaves a piece of a message
// where it is, in bytes.
const LargePiece = 8 << 10

// AppendHead is Append but for a piece that is large: it is not copied, and
// has to follow out on the wire. It is a part of s.Message as it was.
func (e *Encoder) AppendHead(b []byte, s *Step, credit int) (out, tail []byte, cost int) {
	f := framing{e: e, s: s, b: b, start: len(b)}
	f.run(credit)
	if out = f.close(); len(f.tail) < LargePiece {
		return append(out, f.tail...), nil, f.cost
	}
	return out, f.tail, f.cost
}

// run appends the frame but for the piece of the message that it ends with.
func (f *framing) run(credit int) {
	s := f.s
	if s.HasMessage {
		f.overhead = MessageCost
		if s.begun {
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
		f.begin(FlagEnd)
		s.HalfClose = false
	}
}

// A framing is a STREAM frame that is being appended.
type framing struct {
	e        *Encoder
	s        *Step
	b        []byte
	start    int    // of the frame in b
	flags    Kind   // zero before the frame has begun
	overhead int    // credit beside the piece's bytes
	piece    int    // how much of the message there is credit for; may be negative
	finishes bool   // that is all that is left of the message
	tail     []byte // the piece, which comes after b
	cost     int
}

func (f *framing) begin(flags Kind) {
	if f.flags == 0 {
		f.b = begin(f.b, KindStream, f.s.Stream)
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

// room is how many bytes the frame can still take.
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

// whole appends all that is left of the step, if it fits into the frame.
func (f *framing) whole() bool {
	s, mark := f.s, f.e.mark()
	f.begin(FlagEnd)
	if s.hasHead() {
		f.begin(FlagHead)
		f.b = f.appendFirst(f.b, true)
	}
	f.b = f.appendEnd(f.b, true)
	if f.room() < len(s.Message)+s.placeRoom() {
		f.e.forget(mark)
		f.b, f.flags = f.b[:f.start], 0
		return false
	}
	s.Open, s.Header, s.End = nil, nil, nil
	f.appendPiece()
	return true
}

// block appends the block that write appends, as the first of the frame. One
// that is too long goes in PARTs before it.
func (f *framing) block(flag Kind, write func(b []byte, remember bool) []byte) {
	mark := f.e.mark()
	f.begin(flag)
	at := len(f.b)
	f.b = write(f.b, true)
	if f.room() >= 0 {
		return
	}
	f.e.forget(mark)
	long := write(nil, false)
	head := slices.Clone(f.b[f.start+lengthSize+1 : at]) // the stream's number
	room := MaxFrame - 1 - len(head)
	f.b = f.b[:f.start]
	for len(long) > room {
		f.b = begin(f.b, KindPart, f.s.Stream)
		f.b = finish(append(f.b, long[:room]...), f.start)
		f.start, long = len(f.b), long[room:]
	}
	f.b = append(begin(f.b, KindStream, f.s.Stream), long...)
}

// appendPiece appends as much of the message as there is room and credit for.
func (f *framing) appendPiece() {
	s := f.s
	if !s.HasMessage || f.piece < min(len(s.Message), 1) {
		return
	}
	before, flags := len(f.b), f.flags
	if s.Placed {
		if f.room() >= placeRoom {
			f.begin(FlagMessage | FlagPlace)
			f.b = appendUint(appendUint(f.b, uint64(s.Size)), uint64(s.Place))
			f.cost = f.overhead + s.Size
			s.HasMessage, s.Placed = false, false
		}
		return
	}
	if s.begun {
		f.begin(FlagPiece)
	} else {
		f.begin(FlagMessage)
	}
	n := f.piece
	if n < len(s.Message) || n > f.room() {
		if !s.begun {
			f.b = appendUint(f.b, uint64(len(s.Message)))
		}
		if n = min(n, f.room()); n <= 0 {
			f.b, f.flags = f.b[:before], flags
			return
		}
		if n < len(s.Message) {
			f.flags |= FlagMore
		}
	}
	if s.Compressed && !s.begun {
		f.flags |= FlagCompressed
	}
	f.tail = s.Message[:n]
	f.cost = n + f.overhead
	s.Message, s.begun = s.Message[n:], true
	if f.flags&FlagMore == 0 {
		s.HasMessage, s.Message, s.begun = false, nil, false
	}
}

// A Received is what a STREAM frame says. Data aliases the frame.
type Received struct {
	// From the caller.
	Open      *link.CallHeader // the call is opened
	Timeout   time.Duration
	HalfClose bool

	// From the callee.
	Header metadata.MD // nil for none
	End    *link.End

	Begins     bool // a message
	Goes       bool // a further piece of one
	More       bool // there is another
	Compressed bool
	Size       int // of the whole message that begins, in bytes
	Data       []byte
	Placed     bool // the message is at Place, and Data is empty
	Place      int

	// Wrong is what the call must not say, nil for nothing. Everything else is as
	// it would be without it.
	Wrong error
}

// Stream reads a STREAM frame that came from the caller of its call, or from
// the callee. before is what PARTs have brought for it, nil for none. An error is
// about the connection; what is wrong with the call alone is in Received.
func (d *Decoder) Stream(f Frame, before []byte, fromCaller bool) (Received, error) {
	flags := f.Kind &^ KindStream
	if flags == FlagMessage && before == nil { // nothing else costs a peer so little
		return Received{Begins: true, Size: len(f.Body), Data: f.Body}, nil
	}
	message, piece, more := flags&FlagMessage != 0, flags&FlagPiece != 0, flags&FlagMore != 0
	block := flags&FlagHead != 0 || flags&FlagEnd != 0 && !fromCaller
	switch {
	case message && piece,
		flags&FlagPlace != 0 && (!d.Places || !message || more || flags&FlagCompressed != 0),
		more && !message && !piece,
		more && flags&FlagEnd != 0,
		flags&FlagCompressed != 0 && !message,
		flags == 0:
		return Received{}, protocolError("a frame of a call has the flags %#x", byte(flags))
	case before != nil && !block:
		return Received{}, protocolError("parts of a block come before a frame that has none")
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
				rc.Header = metadata.MD{}
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
		rc.Placed, rc.Size, rc.Place = true, clamp(r.uint()), clamp(r.uint())
		if r.end() == nil && rc.Size < MinPlace {
			r.fail("a message of %d bytes is in a place of its own, which takes %d at least", rc.Size, MinPlace)
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
