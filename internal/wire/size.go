package wire

import (
	"math"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// The size of a block is what counts against the limit that a receiver sets, in
// bytes: those of its strings, and stringCost for each of them. It bounds what the
// block takes on the wire, and in a receiver's memory but for a small factor.

// HeadSize returns the size of the head of a call.
func HeadSize(o *link.CallHeader) int {
	return (1+profileStrings)*stringCost + len(o.Method) + profileBytes(o.Profile) + MetadataSize(o.Metadata)
}

// MetadataSize returns the size of a header.
func MetadataSize(md metadata.MD) (n int) {
	for k, values := range md {
		for _, v := range values {
			n += len(k) + len(v) + stringCost
		}
	}
	return n
}

// EndSize returns the size of the end of a call.
func EndSize(end *link.End) int {
	n := stringCost + len(end.Status.Message()) + MetadataSize(end.Trailer)
	if p := end.Status.Proto(); len(p.GetDetails()) > 0 {
		n += len(p.GetDetails())*stringCost + proto.Size(p) // the details are those of the status in full
	}
	return n
}

// detailsField is the number of google.rpc.Status's field details.
const detailsField = 3

// countDetails returns how many details a marshalled google.rpc.Status has, each
// of which becomes a message of its own.
func countDetails(b []byte) (n int) {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return n // unmarshalling fails there, too
		}
		size := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if size < 0 {
			return n
		}
		if number == detailsField {
			n++
		}
		b = b[tag+size:]
	}
	return n
}

// A block counts the one that is being read.
type block struct {
	what  string
	size  int64
	limit int64
}

// beginBlock begins to count a block. A limit of 0 is none.
func (r *reader) beginBlock(what string, limit int) {
	if r.block = (block{what: what, limit: int64(limit)}); limit == 0 {
		r.block.limit = math.MaxInt64
	}
}

// spend counts strings of so many bytes together as part of the block. One that
// is too large is what a call must not have.
func (r *reader) spend(strings, bytes int) {
	b := &r.block
	if b.size += int64(strings)*stringCost + int64(bytes); b.size > b.limit && r.wrong == nil {
		r.object("the %s is larger than the %d bytes that its receiver takes", b.what, b.limit)
	}
}
