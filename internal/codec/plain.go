package codec

import (
	"reflect"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"
)

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
