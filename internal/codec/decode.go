package codec

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// A field says how to decode the field with one number.
type field struct {
	op  *op
	off uintptr
	// within is the wrapper that holds the field, or nil. With a wrapper, off is the offset of
	// the oneof.
	within *wrapper
}

// A decodeMode says how to decode a message.
type decodeMode struct {
	depth int      // how deep messages may nest from here on
	keep  *keeping // nil if the message must not refer to the bytes that it is decoded from
}

func (r decodeMode) nested() decodeMode {
	r.depth--
	return r
}

// A keeping lets a message refer to the bytes that it is decoded from, if one field takes up most
// of them.
type keeping struct {
	least int // the minimum length of such a field's value, in bytes
	kept  bool
}

// mostly returns how many bytes one field must have, in a message of n bytes, so that the decoded
// message may refer to the encoded bytes. All n bytes then stay in memory, so at most a sixteenth
// of them is wasted.
func mostly(n int) int { return n - n/16 }

// keeps reports whether the message may refer to x, the value of a field.
func (r decodeMode) keeps(x []byte) bool {
	if r.keep == nil || len(x) < r.keep.least {
		return false
	}
	r.keep.kept = true
	return true
}

// bytes returns x, or a copy of it, for a field.
func (r decodeMode) bytes(x []byte) []byte {
	if r.keeps(x) {
		return x[:len(x):len(x)]
	}
	return clone(x)
}

// string returns x, or a copy of it, as a string for a field.
func (r decodeMode) string(x []byte) string {
	if r.keeps(x) {
		return stringOf(x)
	}
	return string(x)
}

// compileFields makes the fields of p from its ops.
func (p *program) compileFields() {
	var fields []field
	for i := range p.ops {
		o := &p.ops[i]
		o.width = unsetWidth(o.code)
		if o.code != opOneof {
			fields = append(fields, field{op: o, off: o.off})
			continue
		}
		for j := range o.oneof.wrappers {
			w := &o.oneof.wrappers[j]
			fields = append(fields, field{op: &w.ops[0], off: o.off, within: w})
		}
	}
	slices.SortFunc(fields, func(x, y field) int { return int(x.op.wireTag>>3) - int(y.op.wireTag>>3) })
	for _, f := range fields {
		o := f.op
		p.nests = p.nests || o.sub != nil || o.entries != nil && o.entries.value.sub != nil
		number := int(o.wireTag >> 3)
		if number >= 16 && number >= 2*len(p.fields) {
			if p.far == nil {
				p.far = make(map[uint64]*field)
			}
			p.far[uint64(number)] = &f
			continue
		}
		p.fields = append(p.fields, make([]field, number+1-len(p.fields))...)
		p.fields[number] = f
	}
}

// decode decodes b into m, which already holds what was decoded before. It returns false if
// protobuf-go must decode the message. The content of m is then undefined.
func (p *program) decode(m ptr, b []byte, r decodeMode) bool {
	if p.leftToProtobufGo() || r.depth <= 0 {
		return false
	}
	for len(b) > 0 {
		tag, n := varint(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		f := p.fieldOf(tag >> 3)
		switch {
		case f == nil:
			n = p.keep(m.at(p.unknown).bytes(), tag, b)
		case tag != uint64(f.op.wireTag) && tag != uint64(f.op.alternative):
			return false
		case f.op.code == opMap:
			n = f.op.decodeEntry(m.at(f.off), b, r)
		case f.within != nil:
			n = f.op.decode(f.within.hold(m.at(f.off)), uint32(tag), b, r)
		default:
			n = f.op.decode(m.at(f.off), uint32(tag), b, r)
		}
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// fieldOf returns the field with the given number, or nil if the message has none.
func (p *program) fieldOf(number uint64) *field {
	if number >= uint64(len(p.fields)) {
		return p.far[number]
	}
	if f := &p.fields[number]; f.op != nil {
		return f
	}
	return nil
}

// keep appends a field to the message's unknown fields, because the message type has no such
// field. b begins with the field's value, and keep returns the value's length, or -1 if
// protobuf-go must decode the message.
func (p *program) keep(unknown *[]byte, tag uint64, b []byte) int {
	number, t := protowire.DecodeTag(tag)
	if p.ext != 0 || !number.IsValid() {
		return -1
	}
	n := protowire.ConsumeFieldValue(number, t, b)
	if n < 0 {
		return -1
	}
	*unknown = append(protowire.AppendTag(*unknown, number, t), b[:n]...)
	return n
}

// keepAll appends the unknown fields b of a message to others. It returns false if decoding would not
// keep all of them.
func (p *program) keepAll(unknown *[]byte, b []byte) bool {
	for len(b) > 0 {
		tag, n := varint(b)
		if n < 0 || p.fieldOf(tag>>3) != nil {
			return false
		}
		b = b[n:]
		if n = p.keep(unknown, tag, b); n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// hold makes the oneof at v hold a wrapper of type w, and returns the address of the
// wrapper's field.
func (w *wrapper) hold(v ptr) ptr {
	i := v.iface()
	if i.tab != w.tab || i.data.isNil() {
		*i = iface{w.tab, alloc(w.goType)}
	}
	return i.data
}

// decode decodes the value that follows tag into the field at v, which is no map. b begins with the
// value. decode returns the length of the value, or -1 if protobuf-go must decode the message.
func (o *op) decode(v ptr, tag uint32, b []byte, r decodeMode) int {
	switch protowire.Type(tag & 7) {
	case protowire.BytesType:
		x, n := delimited(b)
		if n < 0 || !o.setBytes(v, x, b[n:], r) {
			return -1
		}
		return n
	case protowire.StartGroupType:
		return -1
	}
	switch o.code {
	case opBool, opBoolPtr, opBools:
		return decodeScalar[uint8](o, v, b)
	case op32, op32Ptr, op32s:
		return decodeScalar[uint32](o, v, b)
	default:
		return decodeScalar[uint64](o, v, b)
	}
}

// decodeScalar does the work of decode for a scalar that is not packed.
func decodeScalar[T word](o *op, v ptr, b []byte) int {
	x, n := scalar[T](o, b)
	if n < 0 {
		return -1
	}
	switch o.code {
	case opBool, op32, op64:
		*as[T](v) = x
	case opBoolPtr, op32Ptr, op64Ptr:
		*as[*T](v) = new(x)
	default:
		*as[[]T](v) = append(*as[[]T](v), x)
	}
	return n
}

// scalar returns the scalar that b begins with, and its length, or a negative length if there is
// none.
func scalar[T word](o *op, b []byte) (x T, n int) {
	if o.form != formFixed {
		v, n := varint(b)
		return scalarOf[T](o, v), n
	}
	switch width := widthOf[T](); {
	case len(b) < width:
		return 0, -1
	case width == 4:
		return T(binary.LittleEndian.Uint32(b)), 4
	default:
		return T(binary.LittleEndian.Uint64(b)), 8
	}
}

// setBytes sets the field at v to x. rest is the input after x.
func (o *op) setBytes(v ptr, x, rest []byte, r decodeMode) bool {
	if o.utf8 && !utf8.Valid(x) {
		return false
	}
	switch o.code {
	case opString:
		*v.string() = r.string(x)
	case opStringPtr:
		*v.stringPtr() = new(r.string(x))
	case opStrings:
		l := v.stringSlice()
		if *l == nil {
			*l = make([]string, 0, 1+following(rest, o.wireTag))
		}
		*l = append(*l, r.string(x))
	case opBytes:
		*v.bytes() = nil
		if len(x) > 0 {
			*v.bytes() = r.bytes(x)
		}
	case opPresenceBytes:
		*v.bytes() = r.bytes(x)
	case opByteses:
		l := v.bytesSlice()
		if *l == nil {
			*l = make([][]byte, 0, 1+following(rest, o.wireTag))
		}
		*l = append(*l, r.bytes(x))
	case opMessage:
		if o.sub.leftToProtobufGo() {
			return false
		}
		m := v.message()
		if m.isNil() {
			*m = alloc(o.sub.goType)
		}
		return o.sub.decode(*m, x, r.nested())
	case opMessages:
		if o.sub.leftToProtobufGo() {
			return false
		}
		l := v.messageSlice()
		if *l == nil {
			*l = make([]ptr, 0, 1+following(rest, o.wireTag))
		}
		m := alloc(o.sub.goType)
		*l = append(*l, m)
		return o.sub.decode(m, x, r.nested())
	case opBools:
		return unpack[uint8](o, v, x)
	case op32s:
		return unpack[uint32](o, v, x)
	case op64s:
		return unpack[uint64](o, v, x)
	}
	return true
}

// unpack appends the packed scalars b to the list at v.
func unpack[T word](o *op, v ptr, b []byte) bool {
	count := len(b) / widthOf[T]()
	if o.form != formFixed {
		count = varints(b)
	}
	list := slices.Grow(*as[[]T](v), count)
	for len(b) > 0 {
		x, n := scalar[T](o, b)
		if n < 0 {
			return false
		}
		list = append(list, x)
		b = b[n:]
	}
	*as[[]T](v) = list
	return true
}

// varints returns the number of complete varints in b.
func varints(b []byte) (n int) {
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}

// mostFollowing is how many fields the function following counts at most.
const mostFollowing = 64

// following returns the number of fields with the given tag at the beginning of b, at most
// mostFollowing. It lets the caller allocate a list or map that has room for them from the start.
// The values of these fields must be preceded by their lengths.
func following(b []byte, tag uint32) (n int) {
	for ; n < mostFollowing; n++ {
		t, k := varint(b)
		if k < 0 || t != uint64(tag) {
			break
		}
		_, m := delimited(b[k:])
		if m < 0 {
			break
		}
		b = b[k+m:]
	}
	return n
}

// varint returns the varint that b begins with, and its length, or a negative length if there is
// none.
func varint(b []byte) (x uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// delimited expects b to begin with a length and that many bytes. It returns these bytes, and how
// many bytes of b they and the length take, or a negative number if b does not hold all of them.
func delimited(b []byte) (x []byte, n int) {
	size, k := varint(b)
	if k < 0 || size > uint64(len(b)-k) {
		return nil, -1
	}
	n = k + int(size)
	return b[k:n], n
}
