package codec

import (
	"reflect"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"
)

// isPlain reports whether protobuf-go's code alone marshals and unmarshals m and
// whatever it may contain. The messages of other generators and older ones may have
// methods of their own for that, and so may extensions, of which any type can be. seen
// has the types that were looked at.
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

// isGenerated reports whether protoc-gen-go has made t, the type of m, for any of the
// APIs that its structs have had since they have a state.
func isGenerated(m protoreflect.Message, t reflect.Type) bool {
	mi, ok := m.Type().(*protoimpl.MessageInfo)
	if !ok || mi.GoReflectType != t || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().NumField() == 0 {
		return false
	}
	f := t.Elem().Field(0)
	return f.Name == "state" && f.Type == reflect.TypeFor[protoimpl.MessageState]()
}

// contained returns an empty message as m has them in fd; nil if that is no field for
// messages.
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
