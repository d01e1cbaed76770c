package codec

// mostNested is how deeply messages that programs encode may nest. It bounds the cost of deep
// nesting: small values of maps are moved once for each level of maps.
const mostNested = 100

// sizes are the sizes of nested messages.
//
// Go walks a map in a different order each time. So for messages within maps, sizes keeps only the
// sizes of large ones, by address. Encoding moves a small one if its length needs more than one
// byte.
type sizes struct {
	of   []int // in encoding order, without types that contain no messages
	next int   // the index of the next size

	maps  int         // how many maps enclose the message whose size is computed
	large map[ptr]int // of messages within maps with more than mostAtOnce bytes
}

// encodedSize returns the size of the encoding of m in bytes. It returns a negative number if
// protobuf-go must compute it. If s is not nil, it adds the sizes of the messages that m contains
// to s.
func (p *program) encodedSize(m ptr, depth int, s *sizes) (n int) {
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
		k := o.encodedSize(v, depth, s)
		if k < 0 {
			return -1
		}
		n += k
	}
	if p.ext != 0 && len(*m.at(p.ext).extensions()) > 0 {
		return -1
	}
	if p.unknown != 0 {
		n += len(*m.at(p.unknown).bytes())
	}
	return n
}

// encodedSize is the encoded size of the field at v.
func (o *op) encodedSize(v ptr, depth int, s *sizes) (n int) {
	switch o.code {
	case opMessage:
		if x := *v.message(); !x.isNil() || o.always {
			return o.nestedSize(x, depth, s)
		}
	case opMessages:
		for _, x := range *v.messageSlice() {
			k := o.nestedSize(x, depth, s)
			if k < 0 {
				return -1
			}
			n += k
		}
	case opOneof:
		if x := *v.iface(); !x.data.isNil() {
			w := o.oneof.wrapperOf(x)
			if w == nil {
				return -1
			}
			return w.ops[0].encodedSize(x.data, depth, s)
		}
	case opMap:
		return o.entries.encodedSize(v, depth, s)
	default:
		return o.scalarSize(v)
	}
	return n
}

// scalarSize does the work of encodedSize for everything except messages, maps and oneofs. It must
// not call encodedSize: if it did, the compiler would move the keys and values of maps to the heap.
func (o *op) scalarSize(v ptr) (n int) {
	tag := int(o.tag)
	switch o.code {
	case opBool:
		if *v.bool() || o.always {
			return tag + 1
		}
	case op32:
		if x := *v.bits32(); x != 0 || o.always {
			return tag + o.size32(x)
		}
	case op64:
		if x := *v.bits64(); x != 0 || o.always {
			return tag + o.size64(x)
		}
	case opString:
		if x := *v.string(); x != "" || o.always {
			return tag + sizeDelimited(len(x))
		}
	case opBytes:
		if x := *v.bytes(); len(x) > 0 {
			return tag + sizeDelimited(len(x))
		}
	case opPresenceBytes:
		if x := *v.bytes(); x != nil || o.always {
			return tag + sizeDelimited(len(x))
		}
	case opBoolPtr:
		if *v.boolPtr() != nil {
			return tag + 1
		}
	case op32Ptr:
		if x := *v.bits32Ptr(); x != nil {
			return tag + o.size32(*x)
		}
	case op64Ptr:
		if x := *v.bits64Ptr(); x != nil {
			return tag + o.size64(*x)
		}
	case opStringPtr:
		if x := *v.stringPtr(); x != nil {
			return tag + sizeDelimited(len(*x))
		}
	default:
		return o.listSize(v)
	}
	return 0
}

// listSize does the work of scalarSize for lists.
func (o *op) listSize(v ptr) (n int) {
	values := 0
	switch o.code {
	case opBools:
		values = len(*v.boolSlice())
		n = values
	case op32s:
		values = len(*v.bits32Slice())
		n = o.size32s(*v.bits32Slice())
	case op64s:
		values = len(*v.bits64Slice())
		n = o.size64s(*v.bits64Slice())
	case opStrings:
		values = len(*v.stringSlice())
		for _, x := range *v.stringSlice() {
			n += sizeDelimited(len(x))
		}
	case opByteses:
		values = len(*v.bytesSlice())
		for _, x := range *v.bytesSlice() {
			n += sizeDelimited(len(x))
		}
	}
	switch {
	case values == 0:
		return 0
	case o.packed:
		return int(o.tag) + sizeDelimited(n)
	default:
		return n + values*int(o.tag)
	}
}

// nestedSize is the size of the message m with its tag and length.
func (o *op) nestedSize(m ptr, depth int, s *sizes) int {
	if o.group {
		return -1
	}
	at := s.reserve(o.sub)
	n := o.sub.encodedSize(m, depth-1, s)
	if n < 0 {
		return -1
	}
	s.set(at, n)
	if n > mostAtOnce {
		s.keep(m, n)
	}
	return int(o.tag) + sizeDelimited(n)
}

// reserve makes room for the size of a message of p. set sets the size.
func (s *sizes) reserve(p *program) (at int) {
	if s == nil || !p.nests || s.maps > 0 {
		return -1
	}
	s.of = append(s.of, 0)
	return len(s.of) - 1
}

func (s *sizes) set(at, n int) {
	if at >= 0 {
		s.of[at] = n
	}
}

// keep keeps the size of m if m is within a map.
func (s *sizes) keep(m ptr, n int) {
	if s == nil || s.maps == 0 {
		return
	}
	if s.large == nil {
		s.large = make(map[ptr]int)
	}
	s.large[m] = n
}

// enter says that the messages that follow, until leave, are within a map.
func (s *sizes) enter() {
	if s != nil {
		s.maps++
	}
}

func (s *sizes) leave() {
	if s != nil {
		s.maps--
	}
}

func (o *op) size32(v uint32) int {
	if o.form == formFixed {
		return 4
	}
	return sizeVarint(o.varint32(v))
}

func (o *op) size64(v uint64) int {
	if o.form == formFixed {
		return 8
	}
	return sizeVarint(o.varint64(v))
}

// size32s returns the encoded size of the elements of v without tags.
func (o *op) size32s(v []uint32) (n int) {
	if o.form == formFixed {
		return 4 * len(v)
	}
	for _, x := range v {
		n += sizeVarint(o.varint32(x))
	}
	return n
}

// size64s returns the encoded size of the elements of v without tags.
func (o *op) size64s(v []uint64) (n int) {
	if o.form == formFixed {
		return 8 * len(v)
	}
	for _, x := range v {
		n += sizeVarint(o.varint64(x))
	}
	return n
}
