package codec

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
)

// NameJSON is the content-subtype of [JSON].
const NameJSON = "json"

// JSON returns the codec of messages in protobuf's JSON format. Fields that a message type
// does not know are ignored.
func JSON() Codec { return jsonFormat{v2Codec{jsonCodec{}}} }

// A FormatError says that a message is not what a text format prescribes, which is a
// mistake of the person or program that wrote it.
type FormatError struct{ Err error }

func (e *FormatError) Error() string { return e.Err.Error() }
func (e *FormatError) Unwrap() error { return e.Err }

type jsonCodec struct{}

func (jsonCodec) Name() string { return NameJSON }

func (jsonCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, err := marshalable(v)
	if err != nil {
		return nil, err
	}
	b, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (jsonCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return decodeJSON(buf.ReadOnlyData(), v)
}

// jsonFormat is jsonCodec as a Codec.
type jsonFormat struct{ v2Codec }

// DecodeBytes is Decode for data in one slice. It does not retain b.
func (jsonFormat) DecodeBytes(b []byte, v any) error { return decodeJSON(b, v) }

func decodeJSON(b []byte, v any) error {
	m := messageOf(v)
	if m == nil {
		return fmt.Errorf("failed to unmarshal, message is %T, want proto.Message", v)
	}
	if len(b) == 0 {
		return &FormatError{errors.New("nothing was sent; an empty message is {}")}
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return &FormatError{fmt.Errorf("no JSON of %s: %w", m.ProtoReflect().Descriptor().FullName(), err)}
	}
	return nil
}
