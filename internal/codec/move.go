package codec

// move moves what src holds to dst, whatever dst holds, and leaves src empty.
//
// Neither the state of a message is touched, by which those find its type who
// hold its protoreflect.Message, nor the size that was cached in it: others may
// write both while they read the message.
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

// share makes dst hold what src holds, itself and no copy of it.
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

// assign gives the field d the value of s.
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

// reset makes the field s zero.
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
