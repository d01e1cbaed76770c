package codec

import (
	"reflect"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// mapEntries copies, encodes and decodes a map field.
type mapEntries struct {
	goType     reflect.Type
	key, value op // off is not used
	keys       shape
	values     shape
	tag        int
	typed      func(e *mapEntries, dst, src ptr) (bound int, f *failure) // or nil
}

// copy copies the map that src points to into the nil map that dst points to.
func (e *mapEntries) copy(dst, src ptr, depth int) (bound int, f *failure) {
	m := src.value(e.goType)
	n := m.Len()
	if n == 0 {
		return 0, nil
	}
	if depth == 0 {
		return 0, tooDeep(src)
	}
	if e.typed != nil {
		return e.typed(e, dst, src)
	}
	c := reflect.MakeMapWithSize(e.goType, n)
	key := reflect.New(e.goType.Key()).Elem()
	value := reflect.New(e.goType.Elem()).Elem()
	for iter := m.MapRange(); iter.Next(); {
		key.SetIterKey(iter)
		value.SetIterValue(iter)
		size := e.key.sizeScalar(key) + e.value.sizeScalar(value)
		if e.key.utf8 && !utf8.ValidString(key.String()) {
			return 0, refused
		}
		switch e.value.code {
		case opString:
			if e.value.utf8 && !utf8.ValidString(value.String()) {
				return 0, refused
			}
		case opPresenceBytes:
			value.SetBytes(clone(value.Bytes()))
		case opMessage:
			v, n, f := e.value.sub.clone(pointee(value), depth-1)
			if f != nil {
				return 0, f
			}
			value.Set(v.value(e.value.sub.goType).Addr())
			size += e.value.sizeBytes(n)
		}
		c.SetMapIndex(key, value)
		bound += e.size(size)
	}
	dst.value(e.goType).Set(c)
	return bound, nil
}

// size returns the encoded size of an entry whose key and value take n bytes together.
func (e *mapEntries) size(n int) int { return e.tag + protowire.SizeBytes(n) }

// sizeScalar returns an upper bound of the encoded size of v with its tag. It
// returns 0 for a message.
func (o *op) sizeScalar(v reflect.Value) int {
	switch o.code {
	case opMessage:
		return 0
	case opString, opPresenceBytes:
		return o.sizeBytes(v.Len())
	default:
		return int(o.max)
	}
}

// typedMaps maps the types that are copied without reflection to their copy functions.
var typedMaps = map[reflect.Type]func(e *mapEntries, dst, src ptr) (int, *failure){
	reflect.TypeFor[map[string]string]():  copyStrings,
	reflect.TypeFor[map[string][]byte]():  copyByteses,
	reflect.TypeFor[map[string]bool]():    copyScalars[bool],
	reflect.TypeFor[map[string]int32]():   copyScalars[int32],
	reflect.TypeFor[map[string]int64]():   copyScalars[int64],
	reflect.TypeFor[map[string]uint32]():  copyScalars[uint32],
	reflect.TypeFor[map[string]uint64]():  copyScalars[uint64],
	reflect.TypeFor[map[string]float32](): copyScalars[float32],
	reflect.TypeFor[map[string]float64](): copyScalars[float64],
}

func copyStrings(e *mapEntries, dst, src ptr) (bound int, f *failure) {
	m := *mapAt[string, string](src)
	c := make(map[string]string, len(m))
	for k, v := range m {
		if e.key.utf8 && !utf8.ValidString(k) || e.value.utf8 && !utf8.ValidString(v) {
			return 0, refused
		}
		c[k] = v
		bound += e.size(e.key.sizeBytes(len(k)) + e.value.sizeBytes(len(v)))
	}
	*mapAt[string, string](dst) = c
	return bound, nil
}

func copyByteses(e *mapEntries, dst, src ptr) (bound int, f *failure) {
	m := *mapAt[string, []byte](src)
	c := make(map[string][]byte, len(m))
	for k, v := range m {
		if e.key.utf8 && !utf8.ValidString(k) {
			return 0, refused
		}
		c[k] = clone(v)
		bound += e.size(e.key.sizeBytes(len(k)) + e.value.sizeBytes(len(v)))
	}
	*mapAt[string, []byte](dst) = c
	return bound, nil
}

func copyScalars[V bool | int32 | int64 | uint32 | uint64 | float32 | float64](e *mapEntries, dst, src ptr) (bound int, f *failure) {
	m := *mapAt[string, V](src)
	c := make(map[string]V, len(m))
	for k, v := range m {
		if e.key.utf8 && !utf8.ValidString(k) {
			return 0, refused
		}
		c[k] = v
		bound += e.size(e.key.sizeBytes(len(k)) + int(e.value.max))
	}
	*mapAt[string, V](dst) = c
	return bound, nil
}
