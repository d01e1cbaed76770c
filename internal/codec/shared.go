package codec

import "github.com/nearcall/nearcall/internal/link"

// Sharing returns the variant of c for peers that have agreed not to write to a message after it
// was sent or received. For [Proto] that is [Shared]; for an encoding.CodecV2, a codec whose
// encoded messages are passed on without a copy. It returns other codecs unchanged.
func Sharing(c link.Codec) link.Codec {
	switch c := c.(type) {
	case protoCodec:
		return Shared()
	case ofBytes:
		c.immutable = c.immutable || c.keepsReferences
		return c
	}
	return c
}

// Unshared returns the codec from which [Sharing] made c, or c itself.
func Unshared(c link.Codec) link.Codec {
	switch v := c.(type) {
	case sharedCodec:
		return Proto()
	case ofBytes:
		v.immutable = v.immutable && !v.keepsReferences
		return v
	}
	return c
}

// Shared returns the codec for peers that agreed not to write to a message after it was sent or
// received. Unlike [Proto], its Copy makes dst refer to the contents of src, for messages of any
// size. Neither Copy nor Copies checks for errors that marshalling would return.
func Shared() Codec { return sharedCodec{} }

type sharedCodec struct{ protoCodec }

// Copies implements [link.Codec].
func (sharedCodec) Copies(v any) bool { return v == nil || !programOf(v).foreign }

// Copy implements [link.Codec]. bound is the exact size, so that size limits and
// flow control still apply.
func (c sharedCodec) Copy(dst, src any) (bound int, ok bool, err error) {
	p := programOfBoth(dst, src)
	if p == nil || dataOf(dst).isNil() || dataOf(src).isNil() {
		return c.protoCodec.Copy(dst, src)
	}
	if dataOf(dst) != dataOf(src) {
		p.share(dataOf(dst), dataOf(src))
	}
	markUsed(dst)
	n, err := c.Size(src)
	return n, err == nil, err
}
