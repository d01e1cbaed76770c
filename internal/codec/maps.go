package codec

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// mapEntries copies, encodes and decodes a map field.
type mapEntries struct {
	key, value op // off is not used
	keys       shape
	values     shape
	tag        int
}

// copy copies the map that src points to into the nil map that dst points to.
func (e *mapEntries) copy(dst, src ptr, depth int) (bound int, f *failure) {
	if src.reference().isNil() {
		return 0, nil
	}
	switch e.keys {
	case shapeBool:
		return copyBy[bool](e, dst, src, depth)
	case shapeInt32:
		return copyBy[int32](e, dst, src, depth)
	case shapeUint32:
		return copyBy[uint32](e, dst, src, depth)
	case shapeInt64:
		return copyBy[int64](e, dst, src, depth)
	case shapeUint64:
		return copyBy[uint64](e, dst, src, depth)
	case shapeString:
		return copyBy[string](e, dst, src, depth)
	}
	return 0, throughBytes
}

func copyBy[K comparable](e *mapEntries, dst, src ptr, depth int) (bound int, f *failure) {
	switch e.values {
	case shapeBool:
		return copyEntries[K, bool](e, dst, src, depth)
	case shapeInt32, shapeUint32:
		return copyEntries[K, uint32](e, dst, src, depth)
	case shapeInt64, shapeUint64:
		return copyEntries[K, uint64](e, dst, src, depth)
	case shapeString:
		return copyEntries[K, string](e, dst, src, depth)
	case shapeBytes:
		return copyEntries[K, []byte](e, dst, src, depth)
	case shapeMessage:
		return copyEntries[K, ptr](e, dst, src, depth)
	}
	return 0, throughBytes
}

func copyEntries[K comparable, V any](e *mapEntries, dst, src ptr, depth int) (bound int, f *failure) {
	m := *mapAt[K, V](src)
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
	*mapAt[K, V](dst) = c
	return bound, nil
}

// own replaces the key or value at v by one that shares no writable memory. It returns an upper
// bound of its encoded size with the tag.
func (o *op) own(v ptr, depth int) (bound int, f *failure) {
	switch o.code {
	case opString:
		s := *v.string()
		if o.utf8 && !utf8.ValidString(s) {
			return 0, refused
		}
		return o.sizeBytes(len(s)), nil
	case opPresenceBytes:
		b := append([]byte{}, *v.bytes()...)
		*v.bytes() = b
		return o.sizeBytes(len(b)), nil
	case opMessage:
		m, n, f := o.sub.clone(*v.message(), depth-1)
		*v.message() = m
		return o.sizeBytes(n), f
	}
	return int(o.max), nil
}
