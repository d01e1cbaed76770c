package codec

import "google.golang.org/protobuf/encoding/protowire"

// encodedSize returns the size of the encoding of m in bytes. It returns a negative number if
// protobuf-go must compute it.
func (p *program) encodedSize(m ptr, depth int) (n int) {
	if p.leftToProtobufGo() || depth <= 0 {
		return -1
	}
	if m.isNil() {
		return 0
	}
	for i := range p.ops {
		o := &p.ops[i]
		v := m.at(o.off)
		if o.unset(v) {
			continue
		}
		k := o.encodedSize(v, depth)
		if k < 0 {
			return -1
		}
		n += k
	}
	if p.ext != 0 && len(*m.at(p.ext).extensions()) > 0 {
		return -1
	}
	return n + len(*m.at(p.unknown).bytes())
}

// encodedSize is the encoded size of the field at v, which is set.
func (o *op) encodedSize(v ptr, depth int) (n int) {
	switch o.code {
	case opMessage:
		return o.nestedSize(*v.message(), depth)
	case opMessages:
		for _, x := range *v.messageSlice() {
			k := o.nestedSize(x, depth)
			if k < 0 {
				return -1
			}
			n += k
		}
		return n
	case opOneof:
		x := *v.iface()
		if x.data.isNil() {
			return 0
		}
		w := o.oneof.wrapperOf(x)
		if w == nil {
			return -1
		}
		return w.ops[0].encodedSize(x.data, depth)
	case opMap:
		return o.entries.size(o.entries, v, depth)
	default:
		return o.scalarSize(v)
	}
}

// scalarSize does the work of encodedSize for everything except messages, maps and oneofs. It must
// not call encodedSize: if it did, the compiler would move the keys and values of maps to the heap.
func (o *op) scalarSize(v ptr) (n int) {
	tag := int(o.tag)
	switch o.code {
	case opBool, opBoolPtr:
		return tag + 1
	case op32:
		return tag + sizeScalar(o, *as[uint32](v))
	case op64:
		return tag + sizeScalar(o, *as[uint64](v))
	case op32Ptr:
		return tag + sizeScalar(o, **as[*uint32](v))
	case op64Ptr:
		return tag + sizeScalar(o, **as[*uint64](v))
	case opBools:
		return o.listSize(len(*as[[]uint8](v)), len(*as[[]uint8](v)))
	case op32s:
		return o.listSize(len(*as[[]uint32](v)), sizeScalars(o, *as[[]uint32](v)))
	case op64s:
		return o.listSize(len(*as[[]uint64](v)), sizeScalars(o, *as[[]uint64](v)))
	case opString:
		if x := *v.string(); x != "" || o.always {
			return o.sizeBytes(len(x))
		}
	case opStringPtr:
		return o.sizeBytes(len(**v.stringPtr()))
	case opStrings:
		for _, x := range *v.stringSlice() {
			n += o.sizeBytes(len(x))
		}
	case opBytes:
		if x := *v.bytes(); len(x) > 0 {
			return o.sizeBytes(len(x))
		}
	case opPresenceBytes:
		return o.sizeBytes(len(*v.bytes()))
	case opByteses:
		for _, x := range *v.bytesSlice() {
			n += o.sizeBytes(len(x))
		}
	}
	return n
}

// listSize is the size of a list of scalars that have n bytes without tags.
func (o *op) listSize(values, n int) int {
	switch {
	case values == 0:
		return 0
	case o.packed:
		return o.sizeBytes(n)
	default:
		return n + values*int(o.tag)
	}
}

// nestedSize is the size of the message m with its tag and length.
func (o *op) nestedSize(m ptr, depth int) int {
	if o.group {
		return -1
	}
	n := o.sub.encodedSize(m, depth-1)
	if n < 0 {
		return -1
	}
	return o.sizeBytes(n)
}

func sizeScalar[T word](o *op, v T) int {
	if o.form == formFixed {
		return widthOf[T]()
	}
	return protowire.SizeVarint(varintOf(o, v))
}

// sizeScalars returns the encoded size of the elements of list without tags.
func sizeScalars[T word](o *op, list []T) (n int) {
	if o.form == formFixed {
		return widthOf[T]() * len(list)
	}
	for _, v := range list {
		n += protowire.SizeVarint(varintOf(o, v))
	}
	return n
}
