package codec

import (
	"reflect"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// mapEntries copies, encodes and decodes a map field.
type mapEntries struct {
	key, value op // off is not used
	tag        int
	mapFuncs
}

// mapFuncs walk and fill maps with one type of keys and one of values in memory. They pass the
// address of each key and value to the op for keys or for values, and never handle a float as a
// float. So a signalling NaN in a map of floats stays signalling, but protobuf-go makes it a quiet
// NaN. Both are correct.
type mapFuncs struct {
	// copy copies the map that src points to into the nil map that dst points to.
	copy func(e *mapEntries, dst, src ptr, depth int) (bound int, f *failure)

	// size is the encoded size of the map at v.
	size func(e *mapEntries, v ptr, depth int) int

	// append appends the map at v, which is the field o.
	append func(e encoder, b []byte, o *op, v ptr, depth int) ([]byte, bool)

	// add decodes the entry b into the map at v, which is the field o. rest is the input after the
	// entry.
	add func(o *op, v ptr, b, rest []byte, r decodeMode) bool
}

// mapFuncsOf returns the functions for maps of the Go type t. Only the size of a value without
// pointers matters, so a number has the functions of an unsigned integer.
func mapFuncsOf(t reflect.Type) (f mapFuncs, ok bool) {
	switch t.Key().Kind() {
	case reflect.Bool:
		return mapFuncsBy[bool](t.Elem())
	case reflect.Int32:
		return mapFuncsBy[int32](t.Elem())
	case reflect.Uint32:
		return mapFuncsBy[uint32](t.Elem())
	case reflect.Int64:
		return mapFuncsBy[int64](t.Elem())
	case reflect.Uint64:
		return mapFuncsBy[uint64](t.Elem())
	case reflect.String:
		return mapFuncsBy[string](t.Elem())
	}
	return f, false
}

func mapFuncsBy[K comparable](value reflect.Type) (f mapFuncs, ok bool) {
	switch value.Kind() {
	case reflect.Bool:
		f = mapFuncsFor[K, uint8]()
	case reflect.Int32, reflect.Uint32, reflect.Float32:
		f = mapFuncsFor[K, uint32]()
	case reflect.Int64, reflect.Uint64, reflect.Float64:
		f = mapFuncsFor[K, uint64]()
	case reflect.String:
		f = mapFuncsFor[K, string]()
	case reflect.Slice:
		f = mapFuncsFor[K, []byte]()
	case reflect.Pointer:
		f = mapFuncsFor[K, ptr]()
	default:
		return f, false
	}
	return f, true
}

func mapFuncsFor[K comparable, V any]() mapFuncs {
	return mapFuncs{copyMap[K, V], sizeMap[K, V], appendMap[K, V], addEntry[K, V]}
}

func copyMap[K comparable, V any](e *mapEntries, dst, src ptr, depth int) (bound int, f *failure) {
	m := *as[map[K]V](src)
	if len(m) == 0 {
		return 0, nil
	}
	if depth == 0 {
		return 0, tooDeep(src)
	}
	c := make(map[K]V, len(m))
	for key, value := range m {
		k, f := e.key.own(addressOf(&key), depth)
		if f != nil {
			return 0, f
		}
		v, f := e.value.own(addressOf(&value), depth)
		if f != nil {
			return 0, f
		}
		c[key] = value
		bound += e.tag + protowire.SizeBytes(k+v)
	}
	*as[map[K]V](dst) = c
	return bound, nil
}

// own replaces the key or value at v by a copy that shares no writable memory. It returns an
// upper bound of its encoded size with the tag.
func (o *op) own(v ptr, depth int) (bound int, f *failure) {
	switch o.code {
	case opString:
		s := *v.string()
		if o.utf8 && !utf8.ValidString(s) {
			return 0, refused
		}
		return o.sizeBytes(len(s)), nil
	case opPresenceBytes:
		b := clone(*v.bytes())
		*v.bytes() = b
		return o.sizeBytes(len(b)), nil
	case opMessage:
		m, n, f := o.sub.clone(*v.message(), depth-1)
		*v.message() = m
		return o.sizeBytes(n), f
	}
	return int(o.max), nil
}

func sizeMap[K comparable, V any](e *mapEntries, v ptr, depth int) (n int) {
	for key, value := range *as[map[K]V](v) {
		k := e.entrySize(addressOf(&key), addressOf(&value), depth)
		if k < 0 {
			return -1
		}
		n += e.tag + protowire.SizeBytes(k)
	}
	return n
}

// entrySize is the encoded size of an entry, without its tag and length.
func (e *mapEntries) entrySize(key, value ptr, depth int) int {
	if e.value.code != opMessage {
		return e.key.scalarSize(key) + e.value.scalarSize(value)
	}
	n := e.value.nestedSize(*value.message(), depth-1)
	if n < 0 {
		return -1
	}
	return e.key.scalarSize(key) + n
}

func appendMap[K comparable, V any](e encoder, b []byte, o *op, v ptr, depth int) (_ []byte, ok bool) {
	m := *as[map[K]V](v)
	sub := o.entries.value.sub
	sizeFirst := sub != nil && len(m) > 0 && e.sizeFirst(b, sub, len(m))
	for key, value := range m {
		if b, ok = e.entry(b, o, addressOf(&key), addressOf(&value), depth, sizeFirst); !ok {
			return b, false
		}
	}
	return b, true
}

// entry appends one entry of a map, with its tag and length.
func (e encoder) entry(b []byte, o *op, key, value ptr, depth int, sizeFirst bool) (_ []byte, ok bool) {
	if !e.room(b, 0) {
		return b, false
	}
	b = o.appendTag(b)
	length := 0
	if sizeFirst {
		if length = o.entries.entrySize(key, value, depth); length < 0 {
			return b, false
		}
	}
	b = appendLength(b, length) // 0 if it is not known yet
	start := len(b)
	if b, ok = e.scalar(b, &o.entries.key, key); !ok {
		return b, false
	}
	if o.entries.value.code == opMessage {
		b, ok = e.nested(b, &o.entries.value, *value.message(), depth-1, sizeFirst)
	} else {
		b, ok = e.scalar(b, &o.entries.value, value)
	}
	if !ok || sizeFirst {
		return b, ok
	}
	return putLength(b, start), true
}

// decodeEntry decodes the entry that b begins with, after its tag, into the map at v. It returns
// the length of the entry, or -1 if protobuf-go must decode the message.
func (o *op) decodeEntry(v ptr, b []byte, r decodeMode) int {
	x, n := delimited(b)
	if n < 0 || !o.entries.add(o, v, x, b[n:], r) {
		return -1
	}
	return n
}

func addEntry[K comparable, V any](o *op, v ptr, b, rest []byte, r decodeMode) bool {
	var key K
	var value V
	if !o.entries.decode(addressOf(&key), addressOf(&value), b, r) {
		return false
	}
	m := as[map[K]V](v)
	if *m == nil {
		*m = make(map[K]V, following(rest, o.wireTag)+1)
	}
	(*m)[key] = value
	return true
}

// decode decodes the entry b into a key and a value, which must be zero.
func (e *mapEntries) decode(key, value ptr, b []byte, r decodeMode) bool {
	if r.depth <= 1 {
		return false
	}
	for len(b) > 0 {
		o, v := &e.key, key
		if uint32(b[0]) == e.value.wireTag {
			o, v = &e.value, value
		} else if uint32(b[0]) != e.key.wireTag {
			return false
		}
		n := o.decode(v, o.wireTag, b[1:], r.nested())
		if n < 0 {
			return false
		}
		b = b[1+n:]
	}
	if e.value.code == opMessage && value.message().isNil() {
		if e.value.sub.leftToProtobufGo() {
			return false
		}
		*value.message() = alloc(e.value.sub.goType)
	}
	return true
}
