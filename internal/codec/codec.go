// Package codec encodes, decodes and copies the messages of RPCs that stay in
// one process.
//
// Two peers in one process do not need bytes between them: what the receiver
// has to see is the value that encoding the sender's message and decoding the
// bytes would have made. [Codec.Copy] makes that value directly wherever it
// knows how, and says so where it does not, for the caller to go through
// [Codec.Append] and [Codec.Decode] instead.
package codec

import "google.golang.org/grpc/mem"

// A Codec turns messages into bytes, bytes into messages, and messages into
// messages. Codecs are safe for concurrent use, and two codecs are the same
// codec exactly if they are equal with ==, which never panics.
type Codec interface {
	// Name is the content-subtype the codec is known by.
	Name() string

	// Size returns the size of v's encoding in bytes. A nil v is an empty
	// message.
	Size(v any) (int, error)

	// Append appends v's encoding to b. It fails as marshalling fails: on a
	// required field that is not set, on invalid UTF-8, on a value of a type
	// that the codec does not encode. A nil v is an empty message.
	Append(b []byte, v any) ([]byte, error)

	// Decode resets v and decodes data into it. The caller keeps its
	// reference to data.
	Decode(data mem.BufferSlice, v any) error

	// Copy makes dst what Decode of Append(src) would have made it, sharing
	// no memory with src that either side may write. dst must not be a
	// message within src, but may be src itself.
	//
	// bound is no less than the size of src's encoding. It is a by-product of
	// copying; a caller that needs the size itself asks Size.
	//
	// If ok is false nothing was copied and dst is untouched: either err is
	// the error that Append(src) makes, or it is nil and the copy has to go
	// through bytes, if Append and Decode let it.
	Copy(dst, src any) (bound int, ok bool, err error)

	// New returns an empty message of src's Go type for Copy to fill and Move
	// to empty, or nil if Move does not support the type.
	New(src any) any

	// Move makes dst what src is without copying what src refers to, and
	// leaves src empty. It reports false, having done nothing, unless dst and
	// src have one Go type, of which New makes messages.
	Move(dst, src any) bool
}
