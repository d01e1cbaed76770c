// Package codec encodes, decodes and copies the messages of RPCs that stay in
// one process.
//
// Two peers in one process do not need bytes between them: what the receiver
// has to see is the value that encoding the sender's message and decoding the
// bytes would have made. [Codec.Copy] makes that value directly wherever it
// knows how, and says so where it does not, for the caller to go through
// [Codec.Append] and [Codec.Decode] instead.
package codec

import "github.com/nearcall/nearcall/internal/link"

// A Codec is [link.Codec], whose documentation says what each method promises.
type Codec = link.Codec
