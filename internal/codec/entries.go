package codec

import "reflect"

// A shape is how a map's keys or values look in memory.
type shape uint8

const (
	shapeBool shape = iota + 1
	shapeInt32
	shapeUint32
	shapeInt64
	shapeUint64
	shapeString
	shapeBytes
	shapeMessage
)

// shapes has the shape of each kind of Go type that keys and values of maps can have. Only the
// size of a value without pointers matters, so a float has the shape of an unsigned integer.
var shapes = map[reflect.Kind]shape{
	reflect.Bool:    shapeBool,
	reflect.Int32:   shapeInt32,
	reflect.Uint32:  shapeUint32,
	reflect.Float32: shapeUint32,
	reflect.Int64:   shapeInt64,
	reflect.Uint64:  shapeUint64,
	reflect.Float64: shapeUint64,
	reflect.String:  shapeString,
	reflect.Slice:   shapeBytes,
	reflect.Pointer: shapeMessage,
}

// Generic functions walk and fill maps, one instance for each pair of shapes. They pass the
// address of each key and value to the op for keys or for values, and never handle a float as a
// float. So a signalling NaN in a map of floats stays signalling, but protobuf-go makes it a quiet
// NaN. Both are correct.

// encodedSize is the encoded size of the map at v.
func (e *mapEntries) encodedSize(v ptr, depth int, s *sizes) int {
	if v.reference().isNil() {
		return 0
	}
	switch e.keys {
	case shapeBool:
		return sizeBy[bool](e, v, depth, s)
	case shapeInt32:
		return sizeBy[int32](e, v, depth, s)
	case shapeUint32:
		return sizeBy[uint32](e, v, depth, s)
	case shapeInt64:
		return sizeBy[int64](e, v, depth, s)
	case shapeUint64:
		return sizeBy[uint64](e, v, depth, s)
	case shapeString:
		return sizeBy[string](e, v, depth, s)
	}
	return -1
}

func sizeBy[K comparable](e *mapEntries, v ptr, depth int, s *sizes) int {
	switch e.values {
	case shapeBool:
		return sizeEntries[K, bool](e, v)
	case shapeInt32, shapeUint32:
		return sizeEntries[K, uint32](e, v)
	case shapeInt64, shapeUint64:
		return sizeEntries[K, uint64](e, v)
	case shapeString:
		return sizeEntries[K, string](e, v)
	case shapeBytes:
		return sizeEntries[K, []byte](e, v)
	case shapeMessage:
		return sizeMessages[K](e, v, depth, s)
	}
	return -1
}

func sizeEntries[K comparable, V any](e *mapEntries, v ptr) (n int) {
	for key, value := range *mapAt[K, V](v) {
		n += e.tag + sizeDelimited(e.key.scalarSize(addressOf(&key))+e.value.scalarSize(addressOf(&value)))
	}
	return n
}

func sizeMessages[K comparable](e *mapEntries, v ptr, depth int, s *sizes) (n int) {
	s.enter()
	defer s.leave()
	for key, m := range *mapAt[K, ptr](v) {
		k := e.value.nestedSize(m, depth-1, s)
		if k < 0 {
			return -1
		}
		n += e.tag + sizeDelimited(e.key.scalarSize(addressOf(&key))+k)
	}
	return n
}

// entries appends the map at v.
func (e *encoder) entries(b []byte, o *op, v ptr, depth int) ([]byte, bool) {
	if v.reference().isNil() {
		return b, true
	}
	switch o.entries.keys {
	case shapeBool:
		return appendBy[bool](e, b, o, v, depth)
	case shapeInt32:
		return appendBy[int32](e, b, o, v, depth)
	case shapeUint32:
		return appendBy[uint32](e, b, o, v, depth)
	case shapeInt64:
		return appendBy[int64](e, b, o, v, depth)
	case shapeUint64:
		return appendBy[uint64](e, b, o, v, depth)
	case shapeString:
		return appendBy[string](e, b, o, v, depth)
	}
	return b, false
}

func appendBy[K comparable](e *encoder, b []byte, o *op, v ptr, depth int) ([]byte, bool) {
	switch o.entries.values {
	case shapeBool:
		return appendEntries[K, bool](e, b, o, v)
	case shapeInt32, shapeUint32:
		return appendEntries[K, uint32](e, b, o, v)
	case shapeInt64, shapeUint64:
		return appendEntries[K, uint64](e, b, o, v)
	case shapeString:
		return appendEntries[K, string](e, b, o, v)
	case shapeBytes:
		return appendEntries[K, []byte](e, b, o, v)
	case shapeMessage:
		return appendMessages[K](e, b, o, v, depth)
	}
	return b, false
}

func appendEntries[K comparable, V any](e *encoder, b []byte, o *op, v ptr) (_ []byte, ok bool) {
	for key, value := range *mapAt[K, V](v) {
		if b, ok = e.entry(b, o, addressOf(&key), addressOf(&value)); !ok {
			return b, false
		}
	}
	return b, true
}

// entry appends one entry of a map, with its tag and length.
func (e *encoder) entry(b []byte, o *op, key, value ptr) (_ []byte, ok bool) {
	if !e.room(b, 0) {
		return b, false
	}
	k, v := &o.entries.key, &o.entries.value
	b = appendLength(o.appendTag(b), k.scalarSize(key)+v.scalarSize(value))
	if b, ok = e.scalar(b, k, key); !ok {
		return b, false
	}
	return e.scalar(b, v, value)
}

func appendMessages[K comparable](e *encoder, b []byte, o *op, v ptr, depth int) (_ []byte, ok bool) {
	k, message := &o.entries.key, &o.entries.value
	sized := e.sized
	if message.sub.nests {
		e.sized = false // sizes.of needs a fixed order, and a map has none
	}
	for key, m := range *mapAt[K, ptr](v) {
		b = o.appendTag(b)
		start := len(b) + 1
		n, known := e.sizeOf(message.sub, m, depth-2)
		if known {
			b = appendLength(b, k.scalarSize(addressOf(&key))+int(message.tag)+sizeDelimited(n))
		} else {
			b = append(b, 0)
		}
		if b, ok = e.scalar(b, k, addressOf(&key)); !ok {
			return b, false
		}
		if b, ok = e.nested(b, message, m, depth-1); !ok {
			return b, false
		}
		if !known {
			b = putLength(b, start)
		}
	}
	e.sized = sized
	return b, true
}

// decodeEntry decodes the entry b into the map at v, which is the field o. rest is the input
// after the entry.
func (o *op) decodeEntry(v ptr, b, rest []byte, r decodeMode) bool {
	switch o.entries.keys {
	case shapeBool:
		return decodeBy[bool](o, v, b, rest, r)
	case shapeInt32:
		return decodeBy[int32](o, v, b, rest, r)
	case shapeUint32:
		return decodeBy[uint32](o, v, b, rest, r)
	case shapeInt64:
		return decodeBy[int64](o, v, b, rest, r)
	case shapeUint64:
		return decodeBy[uint64](o, v, b, rest, r)
	case shapeString:
		return decodeBy[string](o, v, b, rest, r)
	}
	return false
}

func decodeBy[K comparable](o *op, v ptr, b, rest []byte, r decodeMode) bool {
	switch o.entries.values {
	case shapeBool:
		return addEntry[K, bool](o, v, b, rest, r)
	case shapeInt32, shapeUint32:
		return addEntry[K, uint32](o, v, b, rest, r)
	case shapeInt64, shapeUint64:
		return addEntry[K, uint64](o, v, b, rest, r)
	case shapeString:
		return addEntry[K, string](o, v, b, rest, r)
	case shapeBytes:
		return addEntry[K, []byte](o, v, b, rest, r)
	case shapeMessage:
		return addEntry[K, ptr](o, v, b, rest, r)
	}
	return false
}

func addEntry[K comparable, V any](o *op, v ptr, b, rest []byte, r decodeMode) bool {
	var key K
	var value V
	if !o.entries.decode(addressOf(&key), addressOf(&value), b, r) {
		return false
	}
	m := mapAt[K, V](v)
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
