package codec

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nearcall/nearcall/internal/message"
)

// decode decodes a message that comes in pieces.
func decode(c Codec, pieces mem.BufferSlice, v any) error {
	_, err := c.Decode(message.Data{Buffers: pieces}, v)
	return err
}

// decodeBytes decodes bytes that may change afterwards.
func decodeBytes(b []byte, v any) error {
	_, err := Proto().Decode(message.Data{Bytes: b}, v)
	return err
}

// decodeOwned decodes bytes that do not change any more.
func decodeOwned(b []byte, v any) (kept bool, err error) {
	return Proto().Decode(message.Data{Bytes: b, Stay: true}, v)
}

// through marshals src, unmarshals the bytes and returns the result, with the
// error of each step.
func through(src proto.Message) (dst proto.Message, marshal, unmarshal error) {
	b, err := Proto().Append(nil, src)
	if err != nil {
		return nil, err, nil
	}
	dst = src.ProtoReflect().Type().New().Interface()
	if err := decode(Proto(), mem.BufferSlice{mem.SliceBuffer(b)}, dst); err != nil {
		return nil, nil, err
	}
	return dst, nil, nil
}

// check copies src into dst and reports how Copy breaks its contract, if it does.
// It destroys src.
func check(dst, src proto.Message) error {
	want, marshalErr, unmarshalErr := through(src)
	size := proto.Size(src)
	before := fmt.Sprintf("%#v", dst)
	bound, ok, err := Proto().Copy(passed(dst), passed(src))
	switch {
	case marshalErr != nil:
		if ok { // err may be nil: then marshalling reports the error
			return fmt.Errorf("Copy = %v, %v; marshalling says %v", ok, err, marshalErr)
		}
	case err != nil:
		return fmt.Errorf("Copy = %v, %v; marshalling succeeds", ok, err)
	case unmarshalErr != nil:
		if ok {
			return fmt.Errorf("Copy succeeds; unmarshalling says %v", unmarshalErr)
		}
	case !ok:
		if !needsBytes(src.ProtoReflect()) {
			return fmt.Errorf("Copy goes through bytes for no reason")
		}
	default:
		if bound < size {
			return fmt.Errorf("bound is %d, size is %d", bound, size)
		}
		if !proto.Equal(dst, want) {
			return fmt.Errorf("copy is\n%v, want\n%v", dst, want)
		}
		if d := diff(dst, want); d != "" {
			return fmt.Errorf("copy differs in memory: %s", d)
		}
		scramble(src)
		if d := diff(dst, want); d != "" {
			return fmt.Errorf("copy shares memory: %s", d)
		}
		return nil
	}
	if after := fmt.Sprintf("%#v", dst); before != after {
		return fmt.Errorf("Copy failed and changed dst")
	}
	return nil
}

// needsBytes reports whether m has something that Copy does not copy.
func needsBytes(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 || programOf(m.Interface()).foreign {
		return true
	}
	md := m.Descriptor()
	for i := range md.RequiredNumbers().Len() {
		// Marshalling does not check all of them in types that refer to themselves.
		if !m.Has(md.Fields().ByNumber(md.RequiredNumbers().Get(i))) {
			return true
		}
	}
	found := false
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsExtension():
			found = true
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = needsBytes(v.Message())
				return !found
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				found = found || needsBytes(v.List().Get(i).Message())
			}
		default:
			found = needsBytes(v.Message())
		}
		return !found
	})
	return found
}
