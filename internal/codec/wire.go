package codec

import (
	"math/bits"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A form says how a scalar is encoded.
type form uint8

const (
	formSigned   form = iota // varint of the value, extended to 64 bits with its sign
	formUnsigned             // varint
	formZigZag               // varint
	formFixed                // 4 or 8 bytes
)

func formOf(k protoreflect.Kind) form {
	switch k {
	case protoreflect.EnumKind, protoreflect.Int32Kind, protoreflect.Int64Kind:
		return formSigned
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return formZigZag
	case protoreflect.Sfixed32Kind, protoreflect.Fixed32Kind, protoreflect.FloatKind,
		protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind, protoreflect.DoubleKind:
		return formFixed
	default:
		return formUnsigned
	}
}

// tagOf returns the tag that marshalling writes before a value of fd.
func tagOf(fd protoreflect.FieldDescriptor) uint32 {
	t := wireTypeOf(fd.Kind())
	if fd.IsPacked() {
		t = protowire.BytesType
	}
	return uint32(protowire.EncodeTag(fd.Number(), t))
}

// alternativeTagOf returns the tag that decoding accepts besides tagOf(fd), or zero if there is
// none. fd is a list.
func alternativeTagOf(fd protoreflect.FieldDescriptor) uint32 {
	switch t := wireTypeOf(fd.Kind()); {
	case t == protowire.BytesType || t == protowire.StartGroupType:
		return 0
	case fd.IsPacked():
		return uint32(protowire.EncodeTag(fd.Number(), t))
	default:
		return uint32(protowire.EncodeTag(fd.Number(), protowire.BytesType))
	}
}

func wireTypeOf(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	case protoreflect.Sfixed32Kind, protoreflect.Fixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Sfixed64Kind, protoreflect.Fixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	default:
		return protowire.VarintType
	}
}

// leftToProtobufGo reports whether protobuf-go must encode and decode all messages of p's type.
func (p *program) leftToProtobufGo() bool { return p.foreign || p.requires }

// widthOf returns how many bytes at the beginning of a field are zero if the field is not set:
// all of a scalar, and the pointer of anything else.
func widthOf(c opcode) uint8 {
	switch c {
	case opBool:
		return 1
	case op32:
		return 4
	case op64:
		return 8
	default:
		return bits.UintSize / 8
	}
}

// unset reports whether the message's field at v is not set. For some empty fields it returns
// false.
func (o *op) unset(v ptr) bool {
	switch o.width {
	case 1:
		return !*v.bool()
	case 4:
		return *v.bits32() == 0
	default:
		return *v.bits64() == 0
	}
}

// attempts says whether a program should try to encode, or decode, messages of its type. Messages
// of some types always have a part that only protobuf-go can handle, for example an extension. So
// after each failure the next few messages go straight to protobuf-go.
type attempts struct{ skip atomic.Int32 }

// skipped is how many messages go straight to protobuf-go after a failure.
const skipped = 31

func (a *attempts) tries() bool {
	n := a.skip.Load()
	if n == 0 {
		return true
	}
	a.skip.CompareAndSwap(n, n-1)
	return false
}

func (a *attempts) failed() { a.skip.Store(skipped) }

// varint32 returns the varint of the scalar that v holds.
func (o *op) varint32(v uint32) uint64 {
	switch o.form {
	case formSigned:
		return uint64(int32(v))
	case formZigZag:
		return uint64(v<<1 ^ uint32(int32(v)>>31))
	default:
		return uint64(v)
	}
}

// varint64 returns the varint of the scalar that v holds.
func (o *op) varint64(v uint64) uint64 {
	if o.form == formZigZag {
		return v<<1 ^ uint64(int64(v)>>63)
	}
	return v
}

// scalar32 is the inverse of varint32.
func (o *op) scalar32(v uint64) uint32 {
	if o.form == formZigZag {
		return uint32(v)>>1 ^ -(uint32(v) & 1)
	}
	return uint32(v)
}

// scalar64 is the inverse of varint64.
func (o *op) scalar64(v uint64) uint64 {
	if o.form == formZigZag {
		return v>>1 ^ -(v & 1)
	}
	return v
}

// sizeVarint returns the encoded size of v in bytes. 9/64 is close enough to 1/7.
func sizeVarint(v uint64) int { return int(9*uint(bits.Len64(v|1))+64) / 64 }

// sizeDelimited returns the encoded size of n bytes with their length in bytes.
func sizeDelimited(n int) int { return sizeVarint(uint64(n)) + n }
