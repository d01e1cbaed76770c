package codec

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Append encodes a message without computing sizes first if its buffer has room for at most
// mostAtOnce bytes. Callers with more room expect larger messages.
const mostAtOnce = 4 << 10

// An encoder encodes one message.
//
// The length of a nested message comes before the message. Without sizes, encoding leaves one byte
// for the length, and moves the message if the length turns out to need more. As long as messages
// are small, that is cheaper than computing the size first. With sizes, encoding reads the length
// from them, and moves only small messages within maps.
type encoder struct {
	sized bool // sizes.of has the sizes of the messages that are encoded next
	limit int  // stop before the buffer holds more than limit bytes, or soon after
	full  bool // encoding has stopped because of limit
	sizes
}

// encoders holds encoders with sizes, for reuse.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

// mostKept is how many sizes an encoder can have room for and still be reused.
const mostKept = 8 << 10

// appendTo appends the encoding of m to b. If ok is false, protobuf-go must encode m.
// It only reads m.
func (p *program) appendTo(b []byte, m ptr) (_ []byte, ok bool) {
	if room := cap(b) - len(b); room > 0 && room <= mostAtOnce {
		out, ok, full := p.appendAtOnce(b, m)
		if !full {
			return out, ok
		}
	}
	e, n := p.measure(m)
	if e == nil {
		return b, false
	}
	defer e.free()
	return e.measured(b, p, m, n)
}

// measure returns an encoder with the sizes of m, and the size of m's encoding. It returns
// nil if protobuf-go must encode m.
func (p *program) measure(m ptr) (*encoder, int) {
	e := encoders.Get().(*encoder)
	n := p.encodedSize(m, mostNested, &e.sizes)
	if n < 0 {
		e.free()
		return nil, 0
	}
	e.sized, e.limit = true, math.MaxInt
	return e, n
}

// measured appends the encoding of m to b. n is its size, and e has the sizes of nested messages.
// If ok is false, protobuf-go must encode m.
func (e *encoder) measured(b []byte, p *program, m ptr, n int) (_ []byte, ok bool) {
	out, ok := e.message(slices.Grow(b, n), p, m, mostNested)
	return out, ok && len(out) == len(b)+n // otherwise another goroutine has changed m
}

// A measured is a message with the sizes that its encoding needs.
type measured struct {
	program *program
	value   any
	sizes   *encoder
	size    int
}

// Append implements [link.Appender].
func (m *measured) Append(b []byte) ([]byte, error) {
	e := m.sizes
	defer e.free()
	out, ok := e.measured(b, m.program, dataOf(m.value), m.size)
	if !ok {
		m.program.encoding.failed()
		return marshalAppend(b, m.value)
	}
	return out, nil
}

// appendAtOnce appends the encoding of m to b without computing sizes first. If it fails, full
// says whether b had too little room.
func (p *program) appendAtOnce(b []byte, m ptr) (_ []byte, ok, full bool) {
	e := encoder{limit: cap(b)}
	b, ok = e.message(b, p, m, mostNested)
	return b, ok, e.full
}

func (e *encoder) free() {
	if cap(e.of) <= mostKept {
		*e = encoder{sizes: sizes{of: e.of[:0]}}
		encoders.Put(e)
	}
}

// room reports whether n more bytes may be appended to b.
func (e *encoder) room(b []byte, n int) bool {
	if n > e.limit-len(b) {
		e.full = true
		return false
	}
	return true
}

// message appends the encoding of m, of p's type, without its length. If ok is false,
// the encoder is full, or protobuf-go must encode m.
func (e *encoder) message(b []byte, p *program, m ptr, depth int) (_ []byte, ok bool) {
	if p.leftToProtobufGo() || depth <= 0 {
		return b, false
	}
	if m.isNil() {
		return b, true
	}
	for i := range p.ops {
		o := &p.ops[i]
		v := m.at(o.off)
		if o.unset(v) {
			continue
		}
		switch o.code {
		case opString:
			b, ok = e.string(b, o, *v.string())
		case op32:
			b, ok = o.append32(o.appendTag(b), *v.bits32()), true
		case op64:
			b, ok = o.append64(o.appendTag(b), *v.bits64()), true
		case opMessage:
			b, ok = e.nested(b, o, *v.message(), depth)
		default:
			b, ok = e.field(b, o, v, depth)
		}
		if !ok {
			return b, false
		}
	}
	if p.ext != 0 && len(*m.at(p.ext).extensions()) > 0 {
		return b, false
	}
	if p.unknown != 0 {
		if v := *m.at(p.unknown).bytes(); len(v) > 0 {
			if !e.room(b, len(v)) {
				return b, false
			}
			b = append(b, v...)
		}
	}
	return b, true
}

// field appends the field at v.
func (e *encoder) field(b []byte, o *op, v ptr, depth int) (_ []byte, ok bool) {
	switch o.code {
	case opMessage:
		if x := *v.message(); !x.isNil() || o.always {
			return e.nested(b, o, x, depth)
		}
	case opMessages:
		for _, x := range *v.messageSlice() {
			if b, ok = e.nested(b, o, x, depth); !ok {
				return b, false
			}
		}
	case opOneof:
		if x := *v.iface(); !x.data.isNil() {
			w := o.oneof.wrapperOf(x)
			if w == nil {
				return b, false
			}
			return e.field(b, &w.ops[0], x.data, depth)
		}
	case opMap:
		return e.entries(b, o, v, depth)
	default:
		return e.scalar(b, o, v)
	}
	return b, true
}

// scalar does the work of field for everything except messages, maps and oneofs. It must not call
// field: if it did, the compiler would move the keys and values of maps to the heap.
func (e *encoder) scalar(b []byte, o *op, v ptr) (_ []byte, ok bool) {
	switch o.code {
	case opBool:
		if x := *v.bool(); x || o.always {
			b = append(o.appendTag(b), bit(x))
		}
	case op32:
		if x := *v.bits32(); x != 0 || o.always {
			b = o.append32(o.appendTag(b), x)
		}
	case op64:
		if x := *v.bits64(); x != 0 || o.always {
			b = o.append64(o.appendTag(b), x)
		}
	case opString:
		return e.string(b, o, *v.string())
	case opBytes:
		if x := *v.bytes(); len(x) > 0 {
			return e.bytes(b, o, x)
		}
	case opPresenceBytes:
		if x := *v.bytes(); x != nil || o.always {
			return e.bytes(b, o, x)
		}
	case opBoolPtr:
		if x := *v.boolPtr(); x != nil {
			b = append(o.appendTag(b), bit(*x))
		}
	case op32Ptr:
		if x := *v.bits32Ptr(); x != nil {
			b = o.append32(o.appendTag(b), *x)
		}
	case op64Ptr:
		if x := *v.bits64Ptr(); x != nil {
			b = o.append64(o.appendTag(b), *x)
		}
	case opStringPtr:
		if x := *v.stringPtr(); x != nil {
			return e.element(b, o, *x)
		}
	default:
		return e.list(b, o, v)
	}
	return b, true
}

// list does the work of scalar for lists.
func (e *encoder) list(b []byte, o *op, v ptr) (_ []byte, ok bool) {
	switch o.code {
	case opBools:
		return e.bools(b, o, *v.boolSlice())
	case op32s:
		return e.list32(b, o, *v.bits32Slice())
	case op64s:
		return e.list64(b, o, *v.bits64Slice())
	case opStrings:
		for _, x := range *v.stringSlice() {
			if b, ok = e.element(b, o, x); !ok {
				return b, false
			}
		}
	case opByteses:
		for _, x := range *v.bytesSlice() {
			if b, ok = e.bytes(b, o, x); !ok {
				return b, false
			}
		}
	}
	return b, true
}

// string appends the string v, unless v is empty and the field counts as unset if it is empty.
func (e *encoder) string(b []byte, o *op, v string) (_ []byte, ok bool) {
	if v == "" && !o.always {
		return b, true
	}
	return e.element(b, o, v)
}

func (e *encoder) element(b []byte, o *op, v string) (_ []byte, ok bool) {
	if o.utf8 && !utf8.ValidString(v) || !e.room(b, len(v)) {
		return b, false
	}
	return append(appendLength(o.appendTag(b), len(v)), v...), true
}

func (e *encoder) bytes(b []byte, o *op, v []byte) (_ []byte, ok bool) {
	if !e.room(b, len(v)) {
		return b, false
	}
	return append(appendLength(o.appendTag(b), len(v)), v...), true
}

func (e *encoder) bools(b []byte, o *op, v []bool) (_ []byte, ok bool) {
	if len(v) == 0 {
		return b, true
	}
	if !e.room(b, len(v)) {
		return b, false
	}
	if o.packed {
		b = appendLength(o.appendTag(b), len(v))
	}
	for _, x := range v {
		if !o.packed {
			b = o.appendTag(b)
		}
		b = append(b, bit(x))
	}
	return b, true
}

func (e *encoder) list32(b []byte, o *op, v []uint32) (_ []byte, ok bool) {
	if len(v) == 0 {
		return b, true
	}
	n := o.size32s(v)
	if !e.room(b, n) {
		return b, false
	}
	if !o.packed {
		for _, x := range v {
			b = o.append32(o.appendTag(b), x)
		}
		return b, true
	}
	b = appendLength(o.appendTag(b), n)
	if o.form == formFixed {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, x)
		}
		return b, true
	}
	for _, x := range v {
		b = appendVarint(b, o.varint32(x))
	}
	return b, true
}

func (e *encoder) list64(b []byte, o *op, v []uint64) (_ []byte, ok bool) {
	if len(v) == 0 {
		return b, true
	}
	n := o.size64s(v)
	if !e.room(b, n) {
		return b, false
	}
	if !o.packed {
		for _, x := range v {
			b = o.append64(o.appendTag(b), x)
		}
		return b, true
	}
	b = appendLength(o.appendTag(b), n)
	if o.form == formFixed {
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, x)
		}
		return b, true
	}
	for _, x := range v {
		b = appendVarint(b, o.varint64(x))
	}
	return b, true
}

// nested appends the message m of the field o, with its tag and length.
func (e *encoder) nested(b []byte, o *op, m ptr, depth int) (_ []byte, ok bool) {
	if o.group || !e.room(b, 0) {
		return b, false
	}
	b = o.appendTag(b)
	if e.sized || e.large != nil {
		if n, known := e.sizeOf(o.sub, m, depth-1); known {
			start := len(b) + sizeVarint(uint64(n))
			b, ok = e.message(appendLength(b, n), o.sub, m, depth-1)
			return b, ok && len(b) == start+n
		}
	}
	start := len(b) + 1
	if b, ok = e.message(append(b, 0), o.sub, m, depth-1); !ok {
		return b, false
	}
	return putLength(b, start), true
}

// sizeOf returns the size of m, which has p's type and is encoded next, and whether that size is
// known. If another goroutine has changed the message that contains m, the size can be missing.
// sizeOf then returns 0, and the caller notices that 0 is wrong.
func (e *encoder) sizeOf(p *program, m ptr, depth int) (n int, known bool) {
	switch {
	case !e.sized:
		n, known = e.large[m]
		return n, known
	case !p.nests:
		n = p.encodedSize(m, depth, nil)
		return n, n >= 0
	case e.next < len(e.of):
		e.next++
		return e.of[e.next-1], true
	}
	return 0, true
}

// putLength puts the length of b[start:] into the byte before start, and makes room if the length
// needs more than one byte.
func putLength(b []byte, start int) []byte {
	n := len(b) - start
	if n < 0x80 {
		b[start-1] = byte(n)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(length[:], uint64(n))
	b = append(b, length[1:k]...)
	copy(b[start-1+k:], b[start:start+n])
	copy(b[start-1:], length[:k])
	return b
}

func (o *op) appendTag(b []byte) []byte { return appendVarint(b, uint64(o.wireTag)) }

func (o *op) append32(b []byte, v uint32) []byte {
	if o.form == formFixed {
		return binary.LittleEndian.AppendUint32(b, v)
	}
	return appendVarint(b, o.varint32(v))
}

func (o *op) append64(b []byte, v uint64) []byte {
	if o.form == formFixed {
		return binary.LittleEndian.AppendUint64(b, v)
	}
	return appendVarint(b, o.varint64(v))
}

func appendLength(b []byte, n int) []byte { return appendVarint(b, uint64(n)) }

func appendVarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}
