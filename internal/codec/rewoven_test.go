package codec

import (
	"fmt"
	"math"
	"strings"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// encoding appends to b an encoding that marshalling does not produce, but decoding accepts: fields
// in any order and several times, lists packed or not, messages in parts, entries of maps with parts
// that are missing, doubled or unknown. Now and then it is malformed.
func (w *weaver) encoding(b []byte, md protoreflect.MessageDescriptor, depth int) []byte {
	fields := md.Fields()
	for range w.draw(8) {
		if fields.Len() == 0 || w.draw(24) == 1 {
			b = append(b, unknowns[w.draw(len(unknowns))]...)
			continue
		}
		fd := fields.Get(w.draw(fields.Len()))
		for range 1 + w.draw(3) {
			b = w.field(b, fd, depth)
		}
	}
	return b
}

// field appends one occurrence of fd.
func (w *weaver) field(b []byte, fd protoreflect.FieldDescriptor, depth int) []byte {
	if fd.IsList() && kinds[fd.Kind()].wire != protowire.BytesType && fd.Message() == nil && w.draw(2) == 1 {
		var packed []byte
		for range w.draw(5) {
			packed = w.scalar(packed, fd.Kind())
		}
		b = protowire.AppendTag(b, fd.Number(), protowire.BytesType)
		return protowire.AppendBytes(b, packed)
	}
	if fd.IsMap() {
		var entry []byte
		for range w.draw(4) {
			switch w.draw(8) {
			case 0, 1, 2:
				entry = w.field(entry, fd.MapKey(), depth)
			case 7:
				entry = append(entry, unknowns[w.draw(len(unknowns))]...)
			default:
				entry = w.field(entry, fd.MapValue(), depth)
			}
		}
		b = protowire.AppendTag(b, fd.Number(), protowire.BytesType)
		return protowire.AppendBytes(b, entry)
	}
	wireType := kinds[fd.Kind()].wire
	if w.draw(32) == 1 {
		wireType = []protowire.Type{protowire.VarintType, protowire.BytesType, protowire.Fixed32Type, protowire.StartGroupType}[w.draw(4)]
	}
	b = protowire.AppendTag(b, fd.Number(), wireType)
	if md := fd.Message(); md != nil {
		var within []byte
		if depth > 0 {
			within = w.encoding(nil, md, depth-1)
		}
		if wireType == protowire.StartGroupType {
			return protowire.AppendTag(append(b, within...), fd.Number(), protowire.EndGroupType)
		}
		return protowire.AppendBytes(b, within)
	}
	return w.scalar(b, fd.Kind())
}

// scalar appends a value, without its tag.
func (w *weaver) scalar(b []byte, k protoreflect.Kind) []byte {
	switch kinds[k].wire {
	case protowire.BytesType:
		return protowire.AppendString(b, w.text())
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, []uint32{0, 1, math.MaxUint32, 0x7f800001, 0x80000000, 0x3fc00000}[w.draw(6)])
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, []uint64{0, 1, math.MaxUint64, 0x7ff0000000000001, 1 << 63, 0x3ff8000000000000}[w.draw(6)])
	default:
		return protowire.AppendVarint(b, []uint64{0, 1, 2, 300, math.MaxInt32, math.MaxUint32, 1 << 40, math.MaxUint64}[w.draw(8)])
	}
}

// text returns a string, of which one is larger than a page.
func (w *weaver) text() string {
	i := w.draw(20)
	if i == 19 {
		return strings.Repeat("a page ", 700+w.draw(10))
	}
	return []string{"", "text", "\u00e9\u4e16", "\xff\xfe", strings.Repeat("long ", 40)}[i%5]
}

// checkKept reports what is wrong with how m, which was decoded from b, refers to b: if it was not
// said, or with another field than one that is most of b.
func checkKept(m protoreflect.Message, b []byte, kept bool) (err error) {
	held := func(what fmt.Stringer, p *byte, n int) {
		if n > 0 && len(b) > 0 && within(p, b) && (!kept || n < mostly(len(b))) {
			err = fmt.Errorf("kept is %v, and %v refers to %d of %d bytes", kept, what, n, len(b))
		}
	}
	value := func(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
		switch fd.Kind() {
		case protoreflect.StringKind:
			held(name(fd.FullName()), unsafe.StringData(v.String()), len(v.String()))
		case protoreflect.BytesKind:
			held(name(fd.FullName()), unsafe.SliceData(v.Bytes()), len(v.Bytes()))
		case protoreflect.MessageKind, protoreflect.GroupKind:
			if within := checkKept(v.Message(), b, kept); within != nil {
				err = within
			}
		}
	}
	held(name("an unknown field"), unsafe.SliceData(m.GetUnknown()), len(m.GetUnknown()))
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				value(fd.MapKey(), k.Value())
				value(fd.MapValue(), v)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				value(fd, v.List().Get(i))
			}
		default:
			value(fd, v)
		}
		return true
	})
	return err
}

type name string

func (n name) String() string { return string(n) }

// checkMove reports what is wrong with moving src, which equals want, if it can be moved. It
// destroys src.
func checkMove(src, want proto.Message) error {
	dst := cloneOf(want)
	(&weaver{bytes: []byte("what was in the destination before")}).message(dst, 2)
	if !Proto().Move(passed(dst), passed(src)) {
		if !programOf(passed(src)).foreign {
			return fmt.Errorf("%T does not move", src)
		}
		return nil
	}
	if d := diff(dst, want); d != "" || !proto.Equal(dst, want) {
		return fmt.Errorf("%v was moved, want %v: %s", dst, want, d)
	}
	if d := diff(src, src.ProtoReflect().Type().New().Interface()); d != "" {
		return fmt.Errorf("moving left something: %s", d)
	}
	return nil
}
