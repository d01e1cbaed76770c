package codec

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// NameJSON is the content-subtype of [JSON].
const NameJSON = "json"

// JSON returns the codec of messages in protobuf's JSON format. The codec ignores fields that a
// message type does not have. It refuses messages that would take more than linear time; see
// maxNesting.
func JSON() Codec { return ofBytes{codec: jsonCodec{}, immutable: true} }

// Until returns a codec that decodes like c, but may end a long decoding with the error of ctx
// once ctx is done. The result differs from c only for the codec of [JSON], because no other codec
// is slow enough to need it.
func Until(c Codec, ctx interface{ Err() error }) Codec {
	if c == JSON() {
		return ofBytes{codec: jsonCodec{ctx}, immutable: true}
	}
	return c
}

// A FormatError says that a message breaks the rules of a text format, which is the fault of the
// person or program that wrote it.
type FormatError struct{ Err error }

func (e *FormatError) Error() string { return e.Err.Error() }
func (e *FormatError) Unwrap() error { return e.Err }

// jsonCodec is the codec of [JSON].
type jsonCodec struct {
	until interface{ Err() error } // nil: nothing ends a decoding early
}

func (jsonCodec) Name() string { return NameJSON }

func (jsonCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, err := marshalable(v)
	if err != nil {
		return nil, err
	}
	types := &nestedTypes{Types: protoregistry.GlobalTypes, left: mayRepeat(proto.Size(m))}
	b, err := protojson.MarshalOptions{Resolver: types}.Marshal(m)
	if err != nil {
		return nil, errors.New(shortened(err.Error()))
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (c jsonCodec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	b := buf.ReadOnlyData()
	m := messageOf(v)
	if m == nil {
		return fmt.Errorf("failed to unmarshal, message is %T, want proto.Message", v)
	}
	if len(b) == 0 {
		return &FormatError{errors.New("nothing was sent; an empty message is {}")}
	}
	err := checkNesting(b)
	if err == nil {
		types := untilTypes{protoregistry.GlobalTypes, c.until}
		err = protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: types}.Unmarshal(b, m)
	}
	switch {
	case err == nil:
		return nil
	case c.until != nil && c.until.Err() != nil:
		return c.until.Err()
	}
	return &FormatError{fmt.Errorf("no JSON of %s: %s", m.ProtoReflect().Descriptor().FullName(), shortened(err.Error()))}
}

// untilTypes finds registered types, but fails once the context in the field until is done. While
// protojson decodes a message, it asks for a type at each google.protobuf.Any, so the decoding can
// end early there.
type untilTypes struct {
	*protoregistry.Types
	until interface{ Err() error }
}

func (t untilTypes) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if t.until != nil {
		if err := t.until.Err(); err != nil {
			return nil, err
		}
	}
	return t.Types.FindMessageByURL(url)
}

// maxErrorText limits the text of an error, in bytes: protojson quotes a value that is wrong,
// however long it is, and the peer gets the text.
const maxErrorText = 1 << 10

func shortened(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "..."
}
