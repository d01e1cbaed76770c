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
	formBool                 // varint, 0 or 1
	formZigZag               // varint
	formFixed                // 4 or 8 bytes
)

// tagOf returns the tag that marshalling writes before a value of fd.
func tagOf(fd protoreflect.FieldDescriptor) uint32 {
	t := kinds[fd.Kind()].wire
	if fd.IsPacked() {
		t = protowire.BytesType
	}
	return uint32(protowire.EncodeTag(fd.Number(), t))
}

// alternativeTagOf returns the tag that decoding accepts besides tagOf(fd), or zero if there is
// none. fd is a list.
func alternativeTagOf(fd protoreflect.FieldDescriptor) uint32 {
	switch t := kinds[fd.Kind()].wire; {
	case t == protowire.BytesType || t == protowire.StartGroupType:
		return 0
	case fd.IsPacked():
		return uint32(protowire.EncodeTag(fd.Number(), t))
	default:
		return uint32(protowire.EncodeTag(fd.Number(), protowire.BytesType))
	}
}

// leftToProtobufGo reports whether protobuf-go must encode and decode all messages of p's type.
func (p *program) leftToProtobufGo() bool { return p.foreign || p.requires }

// unsetWidth returns how many bytes at the beginning of a field are zero if the field is not set:
// all of a scalar, and the pointer of anything else.
func unsetWidth(c opcode) uint8 {
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
	case 0:
		return false
	case 1:
		return *as[uint8](v) == 0
	case 4:
		return *as[uint32](v) == 0
	default:
		return *as[uint64](v) == 0
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

// A word is the memory of a scalar: a bool, or a number of 32 or 64 bits.
type word interface{ uint8 | uint32 | uint64 }

// varintOf returns the varint of the scalar v.
func varintOf[T word](o *op, v T) uint64 {
	unused := 64 - 8*widthOf[T]()
	signed := int64(v) << unused >> unused
	switch o.form {
	case formSigned:
		return uint64(signed)
	case formZigZag:
		return protowire.EncodeZigZag(signed)
	default:
		return uint64(v)
	}
}

// scalarOf is the inverse of varintOf.
func scalarOf[T word](o *op, v uint64) T {
	switch x := T(v); {
	case o.form == formZigZag:
		return x>>1 ^ -(x & 1)
	case o.form == formBool && v != 0:
		return 1
	default:
		return x
	}
}
