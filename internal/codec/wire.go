package codec

import (
	"math/bits"
	"reflect"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/message"
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

// Get returns the codec that is registered with grpc-go for a content-subtype.
// The empty content-subtype means "proto".
func Get(contentSubtype string) (Codec, bool) {
	name := strings.ToLower(contentSubtype)
	if name == "" {
		name = proto.Name
	}
	if c := encoding.GetCodec(name); c != nil {
		return WrapV1(c), true
	}
	if c := encoding.GetCodecV2(name); c != nil {
		return WrapV2(c), true
	}
	return nil, false
}

// WrapV2 returns c as a Codec. The codec that grpc-go registers for protobuf
// becomes [Proto]; all others copy through bytes.
func WrapV2(c encoding.CodecV2) Codec {
	if grpcinside.IsProtoCodec(c) {
		return Proto()
	}
	if !reflect.ValueOf(c).Comparable() {
		c = &struct{ encoding.CodecV2 }{c}
	}
	return ofBytes{codec: c, keepsReferences: true}
}

// WrapV1 returns c as a Codec that copies through bytes.
func WrapV1(c encoding.Codec) Codec {
	if !reflect.ValueOf(c).Comparable() {
		c = &struct{ encoding.Codec }{c}
	}
	return ofBytes{codec: v1Codec{c}}
}

// v1Codec is a user's encoding.Codec. It may keep the bytes that it unmarshals, so it gets a copy.
type v1Codec struct{ encoding.Codec }

func (c v1Codec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := c.Codec.Marshal(v)
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (c v1Codec) Unmarshal(data mem.BufferSlice, v any) error {
	return c.Codec.Unmarshal(data.Materialize(), v)
}

// ofBytes implements Codec with a codec that turns whole messages into bytes and back. Only the
// codec knows how its messages lie in memory, so no other code can copy them. The codec must be
// comparable: two ofBytes for the same codec are equal with ==.
type ofBytes struct {
	// Marshal may return memory of the message to save a copy. The caller frees the result. The
	// data that is passed to Unmarshal still belongs to the caller.
	codec encoding.CodecV2

	// immutable says that the result of Marshal does not change with the message, so that it can be
	// kept without a copy.
	immutable bool

	// keepsReferences says that a message may refer to the data of Unmarshal. If the memory will be
	// reused, the caller then passes a copy, or buffers that count references.
	keepsReferences bool
}

func (o ofBytes) Name() string { return o.codec.Name() }

func (o ofBytes) marshal(v any) (mem.BufferSlice, error) {
	if v == nil {
		return nil, nil
	}
	return o.codec.Marshal(v)
}

func (o ofBytes) Size(v any) (int, error) {
	data, err := o.marshal(v)
	if err != nil {
		return 0, err
	}
	defer data.Free()
	return data.Len(), nil
}

func (o ofBytes) Append(b []byte, v any) ([]byte, error) {
	data, err := o.marshal(v)
	if err != nil {
		return b, err
	}
	defer data.Free()
	for _, buf := range data {
		b = append(b, buf.ReadOnlyData()...)
	}
	return b, nil
}

func (o ofBytes) AppendWithin(b []byte, _ any) ([]byte, bool) { return b, false }

func (o ofBytes) Sized(v any) (message.Message, error) {
	data, err := o.marshal(v)
	if err != nil {
		return message.Message{}, err
	}
	return message.Encoded(data), nil
}

func (o ofBytes) Immutable() bool { return o.immutable }

func (o ofBytes) Decode(data message.Data, v any) (kept bool, err error) {
	if data.Buffers != nil {
		return false, o.codec.Unmarshal(data.Buffers, v)
	}
	b, keeps := data.Bytes, o.keepsReferences
	if keeps && !data.Stay {
		b = clone(b)
	}
	return keeps && data.Stay, o.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, v)
}

func (o ofBytes) KeepsReferences() bool { return o.keepsReferences }

func (ofBytes) Copy(dst, src any) (int, bool, error) { return 0, false, nil }
func (ofBytes) Copies(any) bool                      { return false }
func (ofBytes) New(any) any                          { return nil }
func (ofBytes) Move(dst, src any) bool               { return false }
