package codec

import (
	"reflect"
	"unsafe"

	"google.golang.org/protobuf/runtime/protoimpl"
)

// This file is all of the package that is unsafe. What makes it sound is that a
// program is compiled for one Go type, and that its offsets and accessors
// are chosen from the reflect.Type of each field:
//
//   - a ptr is nil or points to a variable of the type that the accessor used
//     on it names, or to one of the same memory layout: a named type of the
//     same kind (enums are int32), bits of the same width without pointers
//     (floats), a []*T as []unsafe.Pointer, an interface as its two words, a map
//     as the pointer that it is; a slice that is only assigned, as any slice;
//   - memory that holds pointers is allocated as the Go type that it has in
//     the message and is written only by assignments that the compiler knows
//     to be of pointers, so that the garbage collector sees them;
//   - dataOf is used only on interface values whose dynamic type is a pointer.

// A ptr points to a message, to a oneof wrapper or to one of their fields.
type ptr struct{ p unsafe.Pointer }

func (p ptr) isNil() bool        { return p.p == nil }
func (p ptr) at(off uintptr) ptr { return ptr{unsafe.Add(p.p, off)} }

func (p ptr) bool() *bool                            { return (*bool)(p.p) }
func (p ptr) bits32() *uint32                        { return (*uint32)(p.p) }
func (p ptr) bits64() *uint64                        { return (*uint64)(p.p) }
func (p ptr) string() *string                        { return (*string)(p.p) }
func (p ptr) bytes() *[]byte                         { return (*[]byte)(p.p) }
func (p ptr) boolPtr() **bool                        { return (**bool)(p.p) }
func (p ptr) bits32Ptr() **uint32                    { return (**uint32)(p.p) }
func (p ptr) bits64Ptr() **uint64                    { return (**uint64)(p.p) }
func (p ptr) stringPtr() **string                    { return (**string)(p.p) }
func (p ptr) boolSlice() *[]bool                     { return (*[]bool)(p.p) }
func (p ptr) bits32Slice() *[]uint32                 { return (*[]uint32)(p.p) }
func (p ptr) bits64Slice() *[]uint64                 { return (*[]uint64)(p.p) }
func (p ptr) stringSlice() *[]string                 { return (*[]string)(p.p) }
func (p ptr) bytesSlice() *[][]byte                  { return (*[][]byte)(p.p) }
func (p ptr) message() *ptr                          { return (*ptr)(p.p) }
func (p ptr) messageSlice() *[]ptr                   { return (*[]ptr)(p.p) }
func (p ptr) iface() *iface                          { return (*iface)(p.p) }
func (p ptr) reference() *ptr                        { return (*ptr)(p.p) }   // any pointer, or a map
func (p ptr) slice() *[]ptr                          { return (*[]ptr)(p.p) } // any slice, as a whole
func (p ptr) extensions() *protoimpl.ExtensionFields { return (*protoimpl.ExtensionFields)(p.p) }

// mapAt returns the map that p points to, whose Go type is map[K]V.
func mapAt[K comparable, V any](p ptr) *map[K]V { return (*map[K]V)(p.p) }

// value returns the variable of type t that p points to.
func (p ptr) value(t reflect.Type) reflect.Value { return reflect.NewAt(t, p.p).Elem() }

// zero reports whether the message of the given size that p points to is zero
// but for its state, which is its first word. Messages are aligned to words.
func (p ptr) zero(size uintptr) bool {
	const word = unsafe.Sizeof(uintptr(0))
	for _, w := range unsafe.Slice((*uintptr)(p.p), size/word)[1:] {
		if w != 0 {
			return false
		}
	}
	return true
}

// The state of a message is a word.
const _ = -(unsafe.Sizeof(protoimpl.MessageState{}) ^ unsafe.Sizeof(uintptr(0)))

// alloc returns a new zero variable of type t.
func alloc(t reflect.Type) ptr { return ptr{reflect.New(t).UnsafePointer()} }

// pointee returns what v, of a pointer kind, points to.
func pointee(v reflect.Value) ptr { return ptr{v.UnsafePointer()} }

// tabOf returns the tab of v, of an interface type that has methods.
func tabOf(v reflect.Value) itab { return (*iface)(v.Addr().UnsafePointer()).tab }

// iface is the memory of a value of an interface type that has methods.
type iface struct {
	tab  itab
	data ptr
}

// itab identifies the dynamic type of a value of a given interface type. A
// type may have several.
type itab struct{ p unsafe.Pointer }

// eface is the memory of an any.
type eface struct {
	typ  typeID
	data ptr
}

// typeID identifies a Go type, or no type if it is zero.
type typeID struct{ p unsafe.Pointer }

func (t typeID) hash() uint64 {
	return uint64(uintptr(t.p)) * 0x9e3779b97f4a7c15
}

func typeOf(v any) typeID { return (*eface)(unsafe.Pointer(&v)).typ }
func dataOf(v any) ptr    { return (*eface)(unsafe.Pointer(&v)).data }
