package codec

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Append encodes a message without computing its size first if its buffer has room for at most
// mostAtOnce bytes. Callers with more room expect larger messages.
const mostAtOnce = 4 << 10

// mostNested is how deeply messages that programs encode may nest. It bounds the cost of deep
// nesting: a message can be moved once for each level.
const mostNested = 32

// mostMoved is how many bytes of a message may be moved at each level of nesting.
const mostMoved = 64 << 10

// An encoder says how to encode a message.
//
// The length of a nested message comes before the message. Encoding leaves one byte for the length,
// and moves the message if the length turns out to need more. As long as messages are small, that is
// cheaper than computing the size first, and for those that contain others it is cheaper up to
// mostMoved bytes.
type encoder struct {
	limit int  // stop before the buffer holds more than limit bytes, or soon after
	large bool // compute the size of a nested message first, where sizeFirst says so
}

// appendTo appends the encoding of m to b. If ok is false, protobuf-go must encode m.
// It only reads m.
func (p *program) appendTo(b []byte, m ptr) (_ []byte, ok bool) {
	if room := cap(b) - len(b); room > 0 && room <= mostAtOnce {
		if out, ok := p.appendAtOnce(b, m); ok {
			return out, true
		}
	}
	n := p.encodedSize(m, mostNested)
	if n < 0 {
		return b, false
	}
	return p.appendSized(b, m, n)
}

// appendAtOnce appends the encoding of m to b without computing its size first. If ok is false, b
// has too little room, or protobuf-go must encode m.
func (p *program) appendAtOnce(b []byte, m ptr) (_ []byte, ok bool) {
	return encoder{limit: cap(b)}.message(b, p, m, mostNested)
}

// appendSized appends the encoding of m, of n bytes, to b. If ok is false, protobuf-go must encode m.
func (p *program) appendSized(b []byte, m ptr, n int) (_ []byte, ok bool) {
	out, ok := encoder{limit: math.MaxInt, large: true}.message(slices.Grow(b, n), p, m, mostNested)
	return out, ok && len(out) == len(b)+n // otherwise another goroutine has changed m
}

// A measured is a message and the size of its encoding.
type measured struct {
	program *program // nil if protobuf-go encodes the message
	value   any
	size    int
}

// Append implements [message.Appender].
func (m measured) Append(b []byte) ([]byte, error) {
	if m.program != nil {
		if out, ok := m.program.appendSized(b, dataOf(m.value), m.size); ok {
			return out, nil
		}
		m.program.encoding.failed()
	}
	return marshalAppend(b, m.value)
}

// room reports whether n more bytes may be appended to b.
func (e encoder) room(b []byte, n int) bool { return n <= e.limit-len(b) }

// message appends the encoding of m, of p's type, without its length. If ok is false,
// there is no more room, or protobuf-go must encode m.
func (e encoder) message(b []byte, p *program, m ptr, depth int) (_ []byte, ok bool) {
	if p.leftToProtobufGo() || depth <= 0 {
		return b, false
	}
	if m.isNil() {
		return b, true
	}
	for i := range p.ops {
		o := &p.ops[i]
		if v := m.at(o.off); !o.unset(v) {
			if b, ok = e.field(b, o, v, depth); !ok {
				return b, false
			}
		}
	}
	if p.ext != 0 && len(*m.at(p.ext).extensions()) > 0 {
		return b, false
	}
	unknown := *m.at(p.unknown).bytes()
	if !e.room(b, len(unknown)) {
		return b, false
	}
	return append(b, unknown...), true
}

// field appends the field at v, which is set.
func (e encoder) field(b []byte, o *op, v ptr, depth int) (_ []byte, ok bool) {
	switch o.code {
	case opMessage:
		return e.nested(b, o, *v.message(), depth, e.sizeFirst(b, o.sub, 1))
	case opMessages:
		list := *v.messageSlice()
		sizeFirst := len(list) > 0 && e.sizeFirst(b, o.sub, len(list))
		for _, x := range list {
			if b, ok = e.nested(b, o, x, depth, sizeFirst); !ok {
				return b, false
			}
		}
		return b, true
	case opOneof:
		x := *v.iface()
		if x.data.isNil() {
			return b, true
		}
		w := o.oneof.wrapperOf(x)
		if w == nil {
			return b, false
		}
		return e.field(b, &w.ops[0], x.data, depth)
	case opMap:
		return o.entries.append(e, b, o, v, depth)
	default:
		return e.scalar(b, o, v)
	}
}

// scalar does the work of field for everything except messages, maps and oneofs. It must not call
// field: if it did, the compiler would move the keys and values of maps to the heap.
func (e encoder) scalar(b []byte, o *op, v ptr) (_ []byte, ok bool) {
	switch o.code {
	case opBool:
		return appendScalar(o.appendTag(b), o, *as[uint8](v)), true
	case op32:
		return appendScalar(o.appendTag(b), o, *as[uint32](v)), true
	case op64:
		return appendScalar(o.appendTag(b), o, *as[uint64](v)), true
	case opBoolPtr:
		return appendScalar(o.appendTag(b), o, **as[*uint8](v)), true
	case op32Ptr:
		return appendScalar(o.appendTag(b), o, **as[*uint32](v)), true
	case op64Ptr:
		return appendScalar(o.appendTag(b), o, **as[*uint64](v)), true
	case opBools:
		return appendScalars(e, b, o, *as[[]uint8](v))
	case op32s:
		return appendScalars(e, b, o, *as[[]uint32](v))
	case op64s:
		return appendScalars(e, b, o, *as[[]uint64](v))
	case opString:
		if x := *v.string(); x != "" || o.always {
			return e.string(b, o, x)
		}
	case opStringPtr:
		return e.string(b, o, **v.stringPtr())
	case opStrings:
		for _, x := range *v.stringSlice() {
			if b, ok = e.string(b, o, x); !ok {
				return b, false
			}
		}
	case opBytes:
		if x := *v.bytes(); len(x) > 0 {
			return e.bytes(b, o, x)
		}
	case opPresenceBytes:
		return e.bytes(b, o, *v.bytes())
	case opByteses:
		for _, x := range *v.bytesSlice() {
			if b, ok = e.bytes(b, o, x); !ok {
				return b, false
			}
		}
	}
	return b, true
}

func (e encoder) string(b []byte, o *op, v string) (_ []byte, ok bool) {
	if o.utf8 && !utf8.ValidString(v) || !e.room(b, len(v)) {
		return b, false
	}
	return append(appendLength(o.appendTag(b), len(v)), v...), true
}

func (e encoder) bytes(b []byte, o *op, v []byte) (_ []byte, ok bool) {
	if !e.room(b, len(v)) {
		return b, false
	}
	return append(appendLength(o.appendTag(b), len(v)), v...), true
}

func appendScalars[T word](e encoder, b []byte, o *op, list []T) (_ []byte, ok bool) {
	if len(list) == 0 {
		return b, true
	}
	n := sizeScalars(o, list)
	if !e.room(b, n) {
		return b, false
	}
	if o.packed {
		b = appendLength(o.appendTag(b), n)
	}
	switch {
	case !o.packed:
		for _, v := range list {
			b = appendScalar(o.appendTag(b), o, v)
		}
	case o.form == formFixed:
		for _, v := range list {
			b = appendFixed(b, v)
		}
	default:
		for _, v := range list {
			b = appendVarint(b, varintOf(o, v))
		}
	}
	return b, true
}

// sizeFirst reports whether to compute the sizes of the next n messages, of type p, before they are
// encoded. It assumes that they fill the rest of b.
func (e encoder) sizeFirst(b []byte, p *program, n int) bool {
	return e.large && (!p.nests || (cap(b)-len(b))/n > mostMoved)
}

// nested appends the message m of the field o, with its tag and length.
func (e encoder) nested(b []byte, o *op, m ptr, depth int, sizeFirst bool) (_ []byte, ok bool) {
	if o.group || !e.room(b, 0) {
		return b, false
	}
	b = o.appendTag(b)
	if sizeFirst {
		n := o.sub.encodedSize(m, depth-1)
		if n < 0 {
			return b, false
		}
		return e.message(appendLength(b, n), o.sub, m, depth-1)
	}
	start := len(b) + 1
	if b, ok = e.message(append(b, 0), o.sub, m, depth-1); !ok {
		return b, false
	}
	return putLength(b, start), true
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

func appendScalar[T word](b []byte, o *op, v T) []byte {
	if o.form == formFixed {
		return appendFixed(b, v)
	}
	return appendVarint(b, varintOf(o, v))
}

func appendFixed[T word](b []byte, v T) []byte {
	if widthOf[T]() == 4 {
		return binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return binary.LittleEndian.AppendUint64(b, uint64(v))
}

func appendLength(b []byte, n int) []byte { return appendVarint(b, uint64(n)) }

func appendVarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}
