package codec

import (
	"reflect"

	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"
)

// A layout describes a generated struct as protobuf-go's runtime reads it.
type layout struct {
	goType  reflect.Type
	desc    protoreflect.MessageDescriptor
	fields  map[protoreflect.FieldNumber]reflect.StructField
	oneofs  map[protoreflect.Name]reflect.StructField
	ext     uintptr
	unknown uintptr
}

// layoutOf returns the layout of the struct that t points to. ok is false if
// the struct has a field that layoutOf does not recognise, or if protobuf-go's
// runtime does not treat it as a generated message.
func layoutOf(t reflect.Type) (l layout, ok bool) {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return l, false
	}
	l = layout{
		goType: t.Elem(),
		fields: make(map[protoreflect.FieldNumber]reflect.StructField),
		oneofs: make(map[protoreflect.Name]reflect.StructField),
	}
	for i := range l.goType.NumField() {
		f := l.goType.Field(i)
		isState := f.Name == "state" && f.Type == reflect.TypeFor[protoimpl.MessageState]()
		num, isField := fieldNumber(f)
		oneof := f.Tag.Get("protobuf_oneof")
		switch {
		case isState != (i == 0):
			return l, false
		case isState:
		case f.Name == "sizeCache" && f.Type == reflect.TypeFor[protoimpl.SizeCache]():
		case f.Name == "unknownFields" && f.Type == reflect.TypeFor[protoimpl.UnknownFields]():
			l.unknown = f.Offset
		case f.Name == "extensionFields" && f.Type == reflect.TypeFor[protoimpl.ExtensionFields]():
			l.ext = f.Offset
		case !f.IsExported():
			return l, false
		case isField:
			l.fields[num] = f
		case oneof != "":
			l.oneofs[protoreflect.Name(oneof)] = f
		default:
			return l, false
		}
	}
	m, ok := reflect.New(l.goType).Interface().(proto.Message)
	if !ok {
		return l, false
	}
	mi, ok := m.ProtoReflect().Type().(*protoimpl.MessageInfo)
	if !ok || mi.GoReflectType != t {
		return l, false
	}
	l.desc = mi.Desc
	if set, ok := l.desc.(interface{ IsMessageSet() bool }); ok && set.IsMessageSet() {
		return l, false
	}
	return l, l.unknown != 0
}

// fieldNumber returns the number in f's protobuf tag.
func fieldNumber(f reflect.StructField) (num protoreflect.FieldNumber, ok bool) {
	for s := range strings.SplitSeq(f.Tag.Get("protobuf"), ",") {
		if n, err := strconv.ParseUint(s, 10, 32); err == nil {
			return protoreflect.FieldNumber(n), true
		}
	}
	return 0, false
}
