package codec

import "google.golang.org/protobuf/proto"

// Shared returns the codec of peers that have promised each other not to write
// to a message that was sent or received. It is [Proto] but for Copy, which
// makes dst a second handle on what src refers to: whatever its size, and
// without looking for what marshalling would refuse.
func Shared() Codec { return sharedCodec{} }

type sharedCodec struct{ protoCodec }

// Copies implements [link.Codec].
func (sharedCodec) Copies(v any) bool { return v == nil || !programOf(v).foreign }

// Copy implements [link.Codec]. bound is the size itself, so that limits and
// credit hold.
func (c sharedCodec) Copy(dst, src any) (bound int, ok bool, err error) {
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() || dataOf(src).isNil() {
		return c.protoCodec.Copy(dst, src)
	}
	if dataOf(dst) != dataOf(src) {
		p.share(dataOf(dst), dataOf(src))
	}
	return proto.Size(src.(proto.Message)), true, nil
}
