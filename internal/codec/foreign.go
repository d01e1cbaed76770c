package codec

import (
	"reflect"
	"strings"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/largecopy"
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
	if isGRPCProto(c) {
		return Proto()
	}
	if !reflect.ValueOf(c).Comparable() {
		return &v2Codec{c}
	}
	return v2Codec{c}
}

// WrapV1 returns c as a Codec that copies through bytes.
func WrapV1(c encoding.Codec) Codec {
	if !reflect.ValueOf(c).Comparable() {
		return &v1Codec{c}
	}
	return v1Codec{c}
}

// isGRPCProto reports whether c is the codec of google.golang.org/grpc/encoding/proto.
// That package does not export its codec, so it is recognised by its package path.
func isGRPCProto(c encoding.CodecV2) bool {
	t := reflect.TypeOf(c)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == "google.golang.org/grpc/encoding/proto"
}

// v2Codec implements Codec with an encoding.CodecV2. It is used by value, so
// that wrappers of equal codecs are equal with ==. A codec of a type that is not
// comparable is wrapped by pointer.
type v2Codec struct{ encoding.CodecV2 }

func (c v2Codec) Size(v any) (int, error) {
	if v == nil {
		return 0, nil
	}
	data, err := c.Marshal(v)
	if err != nil {
		return 0, err
	}
	defer data.Free()
	return data.Len(), nil
}

func (c v2Codec) Append(b []byte, v any) ([]byte, error) {
	if v == nil {
		return b, nil
	}
	data, err := c.Marshal(v)
	if err != nil {
		return b, err
	}
	defer data.Free()
	for _, buf := range data {
		b = largecopy.Append(b, buf.ReadOnlyData())
	}
	return b, nil
}

// Give returns v's encoding, which may share v's memory. See [link.Message.Give].
func (c v2Codec) Give(v any) (mem.BufferSlice, error) {
	if v == nil {
		return nil, nil
	}
	return c.Marshal(v)
}

// CountsReferences says that c refers to what it has decoded only with references of its own,
// as the contract of encoding.CodecV2 demands.
func (c v2Codec) CountsReferences() {}

func (c v2Codec) Decode(data mem.BufferSlice, v any) error { return c.Unmarshal(data, v) }
func (c v2Codec) Copy(dst, src any) (int, bool, error)     { return 0, false, nil }
func (c v2Codec) Copies(any) bool                          { return false }
func (c v2Codec) New(src any) any                          { return nil }
func (c v2Codec) Move(dst, src any) bool                   { return false }

// v1Codec implements Codec with an encoding.Codec. It compares as v2Codec does.
type v1Codec struct{ encoding.Codec }

func (c v1Codec) Size(v any) (int, error) {
	if v == nil {
		return 0, nil
	}
	data, err := c.Marshal(v)
	return len(data), err
}

func (c v1Codec) Append(b []byte, v any) ([]byte, error) {
	if v == nil {
		return b, nil
	}
	data, err := c.Marshal(v)
	if err != nil {
		return b, err
	}
	return largecopy.Append(b, data), nil
}

// Give returns v's encoding, which may share v's memory. See [link.Message.Give].
func (c v1Codec) Give(v any) (mem.BufferSlice, error) {
	if v == nil {
		return nil, nil
	}
	data, err := c.Marshal(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

func (c v1Codec) Decode(data mem.BufferSlice, v any) error {
	return c.Unmarshal(data.Materialize(), v)
}

func (c v1Codec) Copy(dst, src any) (int, bool, error) { return 0, false, nil }
func (c v1Codec) Copies(any) bool                      { return false }
func (c v1Codec) New(src any) any                      { return nil }
func (c v1Codec) Move(dst, src any) bool               { return false }
