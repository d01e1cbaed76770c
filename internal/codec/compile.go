package codec

import (
	"cmp"
	"reflect"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// compile returns the program for the Go type t. It adds to the map done that program, and those
// of the message types that t refers to.
//
// It recognises the structs that protoc-gen-go generates for its open API. The
// program of any other type is foreign.
func compile(done map[reflect.Type]*program, t reflect.Type) *program {
	if p := done[t]; p != nil {
		return p
	}
	p := &program{foreign: true}
	done[t] = p
	l, ok := layoutOf(t)
	if !ok {
		return p
	}
	p.goType, p.size = l.goType, l.goType.Size()
	p.ext, p.unknown = l.ext, l.unknown

	// A message type may refer to itself, so the fields below may already refer
	// to p. It becomes foreign again if a field is not recognised.
	p.foreign = false
	fields := l.desc.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if od := fd.ContainingOneof(); od != nil && !od.IsSynthetic() {
			continue
		}
		sf, ok := l.fields[fd.Number()]
		if !ok {
			return p.giveUp()
		}
		o, ok := compileField(done, fd, sf.Type, false)
		if !ok {
			return p.giveUp()
		}
		o.off = sf.Offset
		p.requires = p.requires || o.required
		p.ops = append(p.ops, o)
	}
	slices.SortFunc(p.ops, func(x, y op) int { return cmp.Compare(x.wireTag, y.wireTag) }) // as marshalling orders them
	oneofs := l.desc.Oneofs()
	for i := range oneofs.Len() {
		od := oneofs.Get(i)
		if od.IsSynthetic() {
			continue
		}
		sf, ok := l.oneofs[od.Name()]
		if !ok {
			return p.giveUp()
		}
		c, ok := compileOneof(done, l, od, sf)
		if !ok {
			return p.giveUp()
		}
		p.ops = append(p.ops, op{code: opOneof, oneof: c, off: sf.Offset})
	}
	p.compileFields()
	return p
}

func (p *program) giveUp() *program {
	p.foreign = true
	p.ops = nil
	return p
}

// compileOneof returns the program for the oneof od, which is the field sf of l.
func compileOneof(done map[reflect.Type]*program, l layout, od protoreflect.OneofDescriptor, sf reflect.StructField) (*oneof, bool) {
	c := new(oneof)
	for i := range od.Fields().Len() {
		fd := od.Fields().Get(i)
		// Set the field to find its wrapper type.
		m := reflect.New(l.goType)
		r := m.Interface().(proto.Message).ProtoReflect()
		r.Set(fd, r.NewField(fd))
		v := m.Elem().FieldByIndex(sf.Index)
		if v.Kind() != reflect.Interface || v.NumMethod() == 0 || v.IsNil() {
			return nil, false
		}
		t := v.Elem().Type()
		if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().NumField() != 1 {
			return nil, false
		}
		o, ok := compileField(done, fd, t.Elem().Field(0).Type, true)
		if !ok {
			return nil, false
		}
		c.wrappers = append(c.wrappers, wrapper{
			tab:     tabOf(v),
			program: &program{goType: t.Elem(), ops: []op{o}},
		})
	}
	return c, true
}

// compileField returns the op for a field of the Go type t. If always
// is true, the field counts as set even if it holds the zero value.
func compileField(done map[reflect.Type]*program, fd protoreflect.FieldDescriptor, t reflect.Type, always bool) (op, bool) {
	if fd.IsMap() {
		return compileMap(done, fd, t)
	}
	o := op{
		required: fd.Cardinality() == protoreflect.Required,
		always:   always,
		tag:      uint8(protowire.SizeTag(fd.Number())),
		form:     kinds[fd.Kind()].form,
		group:    fd.Kind() == protoreflect.GroupKind,
		packed:   fd.IsPacked(),
		wireTag:  tagOf(fd),
	}
	if o.group {
		o.tag *= 2
	}
	list := fd.IsList()
	if list {
		o.alternative = alternativeTagOf(fd)
	}
	presence := fd.HasPresence() && !always
	k, ok := kinds[fd.Kind()]
	if !ok {
		return op{}, false
	}
	elem := t
	switch {
	case list:
		if t.Kind() != reflect.Slice {
			return op{}, false
		}
		elem = t.Elem()
	case presence && k.pointer:
		if t.Kind() != reflect.Pointer {
			return op{}, false
		}
		elem = t.Elem()
	}
	if elem.Kind() != k.goKind {
		return op{}, false
	}
	switch {
	case list:
		o.code = k.list
	case presence && k.pointer:
		o.code = k.optional
	case fd.Kind() == protoreflect.BytesKind && (presence || always):
		o.code = opPresenceBytes
	default:
		o.code = k.code
	}
	switch k.goKind {
	case reflect.Pointer:
		if elem.Elem().Kind() != reflect.Struct {
			return op{}, false
		}
		o.sub = compile(done, elem)
	case reflect.Slice:
		if elem.Elem().Kind() != reflect.Uint8 {
			return op{}, false
		}
	case reflect.String:
		o.utf8 = enforcesUTF8(fd)
	default:
		o.max = k.max
		if !list || !fd.IsPacked() {
			o.max += o.tag
		}
	}
	return o, true
}

// compileMap returns the op for a map field of the Go type t.
func compileMap(done map[reflect.Type]*program, fd protoreflect.FieldDescriptor, t reflect.Type) (op, bool) {
	if t.Kind() != reflect.Map {
		return op{}, false
	}
	key, ok := compileField(done, fd.MapKey(), t.Key(), true)
	if !ok {
		return op{}, false
	}
	value, ok := compileField(done, fd.MapValue(), t.Elem(), true)
	if !ok {
		return op{}, false
	}
	funcs, ok := mapFuncsOf(t)
	entries := &mapEntries{key: key, value: value, tag: protowire.SizeTag(fd.Number()), mapFuncs: funcs}
	return op{code: opMap, tag: uint8(entries.tag), wireTag: tagOf(fd), entries: entries}, ok
}

// A kind says how fields of a protobuf kind are represented in Go, copied and encoded.
type kind struct {
	goKind   reflect.Kind // of a single value
	wire     protowire.Type
	form     form  // of a scalar
	max      uint8 // maximum size of an encoded scalar in bytes
	pointer  bool  // a field with presence is a pointer to the value
	code     opcode
	optional opcode
	list     opcode
}

var kinds = func() map[protoreflect.Kind]kind {
	const varint, fixed32, fixed64, delimited = protowire.VarintType, protowire.Fixed32Type, protowire.Fixed64Type, protowire.BytesType
	kind32 := func(k reflect.Kind, wire protowire.Type, f form, max uint8) kind {
		return kind{k, wire, f, max, true, op32, op32Ptr, op32s}
	}
	kind64 := func(k reflect.Kind, wire protowire.Type, f form, max uint8) kind {
		return kind{k, wire, f, max, true, op64, op64Ptr, op64s}
	}
	return map[protoreflect.Kind]kind{
		protoreflect.BoolKind:     {reflect.Bool, varint, formBool, 1, true, opBool, opBoolPtr, opBools},
		protoreflect.EnumKind:     kind32(reflect.Int32, varint, formSigned, 10),
		protoreflect.Int32Kind:    kind32(reflect.Int32, varint, formSigned, 10),
		protoreflect.Sint32Kind:   kind32(reflect.Int32, varint, formZigZag, 5),
		protoreflect.Uint32Kind:   kind32(reflect.Uint32, varint, formUnsigned, 5),
		protoreflect.Sfixed32Kind: kind32(reflect.Int32, fixed32, formFixed, 4),
		protoreflect.Fixed32Kind:  kind32(reflect.Uint32, fixed32, formFixed, 4),
		protoreflect.FloatKind:    kind32(reflect.Float32, fixed32, formFixed, 4),
		protoreflect.Int64Kind:    kind64(reflect.Int64, varint, formSigned, 10),
		protoreflect.Sint64Kind:   kind64(reflect.Int64, varint, formZigZag, 10),
		protoreflect.Uint64Kind:   kind64(reflect.Uint64, varint, formUnsigned, 10),
		protoreflect.Sfixed64Kind: kind64(reflect.Int64, fixed64, formFixed, 8),
		protoreflect.Fixed64Kind:  kind64(reflect.Uint64, fixed64, formFixed, 8),
		protoreflect.DoubleKind:   kind64(reflect.Float64, fixed64, formFixed, 8),
		protoreflect.StringKind:   {reflect.String, delimited, 0, 0, true, opString, opStringPtr, opStrings},
		protoreflect.BytesKind:    {reflect.Slice, delimited, 0, 0, false, opBytes, opPresenceBytes, opByteses},
		protoreflect.MessageKind:  {reflect.Pointer, delimited, 0, 0, false, opMessage, opMessage, opMessages},
		protoreflect.GroupKind:    {reflect.Pointer, protowire.StartGroupType, 0, 0, false, opMessage, opMessage, opMessages},
	}
}()

// enforcesUTF8 reports whether marshalling validates the strings of fd.
func enforcesUTF8(fd protoreflect.FieldDescriptor) bool {
	if fd.Syntax() == protoreflect.Editions {
		if fd, ok := fd.(interface{ EnforceUTF8() bool }); ok {
			return fd.EnforceUTF8()
		}
	}
	return fd.Syntax() == protoreflect.Proto3
}
