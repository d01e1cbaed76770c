package codec

import (
	"reflect"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Shared returns the codec of peers that have promised each other not to write
// to a message that was sent or received. It is [Proto] but for Copy, which
// makes dst a second handle on what src refers to: whatever its size, and
// without looking for what marshalling would refuse.
func Shared() Codec { return sharedCodec{} }

type sharedCodec struct{ protoCodec }

// Copy implements [link.Codec]. bound is the size itself, so that limits and
// credit hold.
func (c sharedCodec) Copy(dst, src any) (bound int, ok bool, err error) {
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() || dataOf(src).isNil() {
		return c.protoCodec.Copy(dst, src)
	}
	p.share(dataOf(dst), dataOf(src))
	return proto.Size(src.(proto.Message)), true, nil
}

// A part is a field of a message's struct that holds some of its contents.
type part struct {
	off    uintptr
	goType reflect.Type
}

// parts are the fields of a message's struct but for those that others may
// write while they read the message: its state and its cached size.
type parts struct {
	once sync.Once
	all  []part
}

func (p *program) contents() []part {
	p.parts.once.Do(func() {
		for i := range p.goType.NumField() {
			if f := p.goType.Field(i); f.Name != "state" && f.Name != "sizeCache" {
				p.parts.all = append(p.parts.all, part{f.Offset, f.Type})
			}
		}
	})
	return p.parts.all
}

// share gives dst what src has, field by field.
func (p *program) share(dst, src ptr) {
	if dst == src {
		return
	}
	for _, f := range p.contents() {
		dst.at(f.off).value(f.goType).Set(src.at(f.off).value(f.goType))
	}
}
