package codec

// move moves the content of src to dst, which may hold anything, and leaves src empty.
//
// It touches neither the message's state, through which its protoreflect.Message finds the type,
// nor its cached size: protobuf-go may write both while another goroutine only reads the message.
func (p *program) move(dst, src ptr) {
	for i := range p.ops {
		o := &p.ops[i]
		d, s := dst.at(o.off), src.at(o.off)
		assign(o.code, d, s)
		reset(o.code, s)
	}
	d, s := dst.at(p.unknown).bytes(), src.at(p.unknown).bytes()
	*d, *s = *s, nil
	if p.ext != 0 {
		d, s := dst.at(p.ext).extensions(), src.at(p.ext).extensions()
		*d, *s = *s, nil
	}
}

// share assigns the fields of src to dst. Both then refer to the same contents.
func (p *program) share(dst, src ptr) {
	for i := range p.ops {
		o := &p.ops[i]
		assign(o.code, dst.at(o.off), src.at(o.off))
	}
	*dst.at(p.unknown).bytes() = *src.at(p.unknown).bytes()
	if p.ext != 0 {
		*dst.at(p.ext).extensions() = *src.at(p.ext).extensions()
	}
}

// assign sets the field d to the value of the field s.
func assign(code opcode, d, s ptr) {
	switch code {
	case opBool:
		*d.bool() = *s.bool()
	case op32:
		*d.bits32() = *s.bits32()
	case op64:
		*d.bits64() = *s.bits64()
	case opString:
		*d.string() = *s.string()
	case opOneof:
		*d.iface() = *s.iface()
	case opBoolPtr, op32Ptr, op64Ptr, opStringPtr, opMessage, opMap:
		*d.reference() = *s.reference()
	default:
		*d.slice() = *s.slice()
	}
}

// reset sets the field s to zero.
func reset(code opcode, s ptr) {
	switch code {
	case opBool:
		*s.bool() = false
	case op32:
		*s.bits32() = 0
	case op64:
		*s.bits64() = 0
	case opString:
		*s.string() = ""
	case opOneof:
		*s.iface() = iface{}
	case opBoolPtr, op32Ptr, op64Ptr, opStringPtr, opMessage, opMap:
		*s.reference() = ptr{}
	default:
		*s.slice() = nil
	}
}
