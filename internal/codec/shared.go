package codec

import (
	"reflect"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"

	"github.com/nearcall/nearcall/internal/message"
)

// Sharing returns the variant of c for peers that have agreed not to write to a message after it
// was sent or received. For [Proto] that is [Shared]; for an encoding.CodecV2, a codec whose
// encoded messages are passed on without a copy. It returns other codecs unchanged.
func Sharing(c message.Codec) message.Codec {
	switch c := c.(type) {
	case protoCodec:
		return Shared()
	case ofBytes:
		c.immutable = c.immutable || c.keepsReferences
		return c
	}
	return c
}

// Unshared returns the codec from which [Sharing] made c, or c itself.
func Unshared(c message.Codec) message.Codec {
	switch v := c.(type) {
	case sharedCodec:
		return Proto()
	case ofBytes:
		v.immutable = v.immutable && !v.keepsReferences
		return v
	}
	return c
}

// Shared returns the codec for peers that agreed not to write to a message after it was sent or
// received. Unlike [Proto], its Copy makes dst refer to the contents of src, for messages of any
// size. Copy and Copies do not check for errors that marshalling would return.
func Shared() Codec { return sharedCodec{} }

type sharedCodec struct{ protoCodec }

// Copies implements [message.Codec].
func (sharedCodec) Copies(v any) bool { return v == nil || !programOf(v).foreign }

// Copy implements [message.Codec]. bound is the exact size, so that size limits and
// flow control still apply.
func (c sharedCodec) Copy(dst, src any) (bound int, ok bool, err error) {
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() || dataOf(src).isNil() {
		return c.protoCodec.Copy(dst, src)
	}
	if dataOf(dst) != dataOf(src) {
		p.share(dataOf(dst), dataOf(src))
	}
	markUsed(dst)
	n, err := c.Size(src)
	return n, err == nil, err
}

// share assigns the fields of src to dst, which may hold anything. Both then refer to the same
// contents.
//
// It touches neither the message's state, through which its protoreflect.Message finds the type,
// nor its cached size: protobuf-go may write both while another goroutine only reads the message.
func (p *program) share(dst, src ptr) {
	for i := range p.ops {
		o := &p.ops[i]
		assign(o.code, dst.at(o.off), src.at(o.off))
	}
	*dst.at(p.unknown).bytes() = *src.at(p.unknown).bytes()
	if p.ext != 0 {
		*dst.at(p.ext).extensions() = *src.at(p.ext).extensions()
	}
}

// assign sets the field d to the value of the field s.
func assign(code opcode, d, s ptr) {
	switch code {
	case opBool:
		*as[uint8](d) = *as[uint8](s)
	case op32:
		*as[uint32](d) = *as[uint32](s)
	case op64:
		*as[uint64](d) = *as[uint64](s)
	case opString:
		*d.string() = *s.string()
	case opOneof:
		*d.iface() = *s.iface()
	case opBoolPtr, op32Ptr, op64Ptr, opStringPtr, opMessage, opMap:
		*d.reference() = *s.reference()
	default:
		*d.slice() = *s.slice()
	}
}

// isPlain reports whether protobuf-go marshals and unmarshals m, and every message that m can
// contain, without running user code. Messages from other generators and from old versions of
// protoc-gen-go may have their own marshalling methods. So may extensions, which can have any
// message type. seen holds the types already visited.
func isPlain(m protoreflect.Message, seen map[reflect.Type]bool) bool {
	t := reflect.TypeOf(m.Interface())
	if seen[t] {
		return true
	}
	seen[t] = true
	if !isGenerated(m, t) || m.Descriptor().ExtensionRanges().Len() > 0 {
		return false
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if within := contained(m, fields.Get(i)); within != nil && !isPlain(within, seen) {
			return false
		}
	}
	return true
}

// isGenerated reports whether protoc-gen-go generated t, the type of m, for any API
// (open, hybrid or opaque) whose structs begin with a state field.
func isGenerated(m protoreflect.Message, t reflect.Type) bool {
	mi, ok := m.Type().(*protoimpl.MessageInfo)
	if !ok || mi.GoReflectType != t || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().NumField() == 0 {
		return false
	}
	f := t.Elem().Field(0)
	return f.Name == "state" && f.Type == reflect.TypeFor[protoimpl.MessageState]()
}

// contained returns an empty message of the type that the field fd of m holds, or nil
// if fd holds no messages.
func contained(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Message {
	switch {
	case fd.IsMap():
		if fd.MapValue().Message() == nil {
			return nil
		}
		return m.NewField(fd).Map().NewValue().Message()
	case fd.Message() == nil:
		return nil
	case fd.IsList():
		return m.NewField(fd).List().NewElement().Message()
	}
	return m.NewField(fd).Message()
}
