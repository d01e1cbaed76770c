package codec

// Shared returns the codec for peers that agreed not to write to a message
// after it was sent or received. It differs from [Proto] only in Copy, which
// makes dst refer to the contents of src. It does this for messages of any
// size, and does not check for errors that marshalling would return.
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
	n, err := c.Size(src)
	return n, err == nil, err
}
