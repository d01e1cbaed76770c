package codec

import "google.golang.org/protobuf/proto"

// share assigns the fields of src to dst, which may hold anything. Both then refer to the same
// contents.
//
// It touches neither the message's state, through which its protoreflect.Message finds the type,
// nor its cached size: protobuf-go may write both while another goroutine only reads the message.
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

// move moves the content of src to dst, which may hold anything, and leaves src empty.
func (p *program) move(dst, src any) {
	p.share(dataOf(dst), dataOf(src))
	proto.Reset(src.(proto.Message))
}

// assign sets the field d to the value of the field s.
func assign(code opcode, d, s ptr) {
	switch code {
	case opBool:
		*as[uint8](d) = *as[uint8](s)
	case op32:
		*as[uint32](d) = *as[uint32](s)
	case op64:
		*as[uint64](d) = *as[uint64](s)
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
