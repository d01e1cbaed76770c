// Package codec encodes, decodes and copies the messages of RPCs.
//
// For each protobuf message type it compiles a program, which knows how such messages lie in
// memory. Programs encode and decode common messages, and leave all others entirely to
// protobuf-go, so that the results and errors are protobuf-go's.
//
// Two peers in one process need no bytes between them. The receiver must see
// the value that marshalling the sender's message and unmarshalling the bytes
// would produce. [Codec.Copy] produces that value directly if it knows the Go
// type. Otherwise it reports that it does not, and the caller uses
// [Codec.Append] and [Codec.Decode].
package codec

import "github.com/nearcall/nearcall/internal/link"

// A Codec is a [link.Codec]; see there for the contract of each method.
type Codec = link.Codec
