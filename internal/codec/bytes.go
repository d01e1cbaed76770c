package codec

import (
	"reflect"
	"strings"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

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

func (o ofBytes) Sized(v any) (link.Message, error) {
	data, err := o.marshal(v)
	if err != nil {
		return link.Message{}, err
	}
	return link.Encoded(data), nil
}

func (o ofBytes) Immutable() bool { return o.immutable }

func (o ofBytes) Decode(data link.Data, v any) (kept bool, err error) {
	if data.Buffers != nil {
		return false, o.codec.Unmarshal(data.Buffers, v)
	}
	b, keeps := data.Bytes, o.keepsReferences
	if keeps && !data.Stay {
		b = append([]byte{}, b...)
	}
	return keeps && data.Stay, o.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, v)
}

func (o ofBytes) KeepsReferences() bool { return o.keepsReferences }

func (ofBytes) Copy(dst, src any) (int, bool, error) { return 0, false, nil }
func (ofBytes) Copies(any) bool                      { return false }
func (ofBytes) New(any) any                          { return nil }
func (ofBytes) Move(dst, src any) bool               { return false }
