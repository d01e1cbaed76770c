package codec

import (
	"reflect"
	"strconv"
	"strings"
	"unsafe"

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

// All unsafe code of the package is in this file. It is sound because a program is compiled for one
// Go type, and its offsets and accessors are chosen from the reflect.Type of each field:
//
//   - A ptr is nil, or points to a variable of the type that its accessor names or as is called with, or to a variable
//     with the same memory layout: a named type of the same kind (enums are int32), pointer-free
//     bits of the same width (bools, signed numbers, floats), a []*T as []unsafe.Pointer, an interface as its two words,
//     and a map as a pointer. Code that only assigns a slice may use any slice type for it. A map
//     can be accessed as a map with the same keys and with values of the same memory layout,
//     because the runtime looks at nothing else. A test for nil reads a pointer as a number of the
//     same width.
//   - Memory that holds pointers is allocated with its Go type in the message.
//     It is written only by assignments of pointer types, so that the compiler
//     emits write barriers for the garbage collector.
//   - dataOf is used only on interface values whose dynamic type is a pointer.

// A ptr points to a message, a oneof wrapper, or a field of one.
type ptr struct{ p unsafe.Pointer }

func (p ptr) isNil() bool                            { return p.p == nil }
func (p ptr) at(off uintptr) ptr                     { return ptr{unsafe.Add(p.p, off)} }
func (p ptr) string() *string                        { return (*string)(p.p) }
func (p ptr) bytes() *[]byte                         { return (*[]byte)(p.p) }
func (p ptr) stringPtr() **string                    { return (**string)(p.p) }
func (p ptr) stringSlice() *[]string                 { return (*[]string)(p.p) }
func (p ptr) bytesSlice() *[][]byte                  { return (*[][]byte)(p.p) }
func (p ptr) message() *ptr                          { return (*ptr)(p.p) }
func (p ptr) messageSlice() *[]ptr                   { return (*[]ptr)(p.p) }
func (p ptr) iface() *iface                          { return (*iface)(p.p) }
func (p ptr) reference() *ptr                        { return (*ptr)(p.p) }   // any pointer, or a map
func (p ptr) slice() *[]ptr                          { return (*[]ptr)(p.p) } // any slice, as a whole
func (p ptr) extensions() *protoimpl.ExtensionFields { return (*protoimpl.ExtensionFields)(p.p) }

// as returns p as a pointer to a scalar, an optional scalar, a list of scalars or a map.
func as[T any](p ptr) *T { return (*T)(p.p) }

// widthOf returns the size of a T in bytes.
func widthOf[T word]() int { return int(unsafe.Sizeof(T(0))) }

// addressOf returns the address of a key or value of a map, for a program to read or
// fill. The programs keep no address of a field, so v need not be on the heap.
func addressOf[T any](v *T) ptr { return ptr{unsafe.Pointer(v)} }

// zero reports whether the message that p points to, of the given size in bytes, is zero except for
// its state, which is its first word. Messages are aligned to words.
func (p ptr) zero(size uintptr) bool {
	const word = unsafe.Sizeof(uintptr(0))
	for _, w := range unsafe.Slice((*uintptr)(p.p), size/word)[1:] {
		if w != 0 {
			return false
		}
	}
	return true
}

// The state of a message is one word: otherwise this does not compile.
const _ = -(unsafe.Sizeof(protoimpl.MessageState{}) ^ unsafe.Sizeof(uintptr(0)))

// alloc returns a new zero variable of type t.
func alloc(t reflect.Type) ptr { return ptr{reflect.New(t).UnsafePointer()} }

// tabOf returns the tab of v, a variable of an interface type that has methods.
func tabOf(v reflect.Value) itab { return (*iface)(v.Addr().UnsafePointer()).tab }

// iface is the memory of a value of an interface type that has methods.
type iface struct {
	tab  itab
	data ptr
}

// itab identifies the dynamic type of a value of a given interface type. A
// dynamic type may have several itabs.
type itab struct{ p unsafe.Pointer }

// eface is the memory of an any.
type eface struct {
	typ  typeID
	data ptr
}

// typeID identifies a Go type, or no type if it is zero.
type typeID struct{ p unsafe.Pointer }

func typeOf(v any) typeID { return (*eface)(unsafe.Pointer(&v)).typ }
func dataOf(v any) ptr    { return (*eface)(unsafe.Pointer(&v)).data }

// stringOf returns b as a string. b must not change afterwards.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
