package wire

import (
	"cmp"
	"math"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// The size of a block, which counts against its receiver's limit, is the length of its strings
// plus stringCost for each, in bytes. It bounds the block's length on the wire and, up to a small
// factor, the memory that it takes at the receiver.

// HeadSize returns the size of the head of a call.
func HeadSize(o *link.CallHeader) int {
	return (1+profileStrings)*stringCost + len(o.Method) + profileBytes(o.Profile) + MetadataSize(o.Metadata)
}

// MetadataSize returns the size of a header or trailer.
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
	n := stringCost + len(end.Status.Message()) + MetadataSize(end.Trailer) + trailerDetails(end.Trailer)*stringCost
	if p := end.Status.Proto(); len(p.GetDetails()) > 0 {
		n += len(p.GetDetails())*stringCost + proto.Size(p) // details are sent as the marshaled status
	}
	return n
}

// detailsField is the number of the field details in google.rpc.Status.
const detailsField = 3

// countDetails returns how many details a marshaled google.rpc.Status has. Each becomes
// a message when it is unmarshaled.
func countDetails(b []byte) (n int) {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return n // proto.Unmarshal fails at the same place
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

// trailerDetails returns the number of status details in a trailer. The caller of the RPC may use
// them if the status itself has none.
func trailerDetails(trailer metadata.MD) int {
	if own := trailer[link.DetailsKey]; len(own) == 1 {
		return countDetails([]byte(own[0]))
	}
	return 0
}

// A block tracks the size of the block that a reader decodes.
type block struct {
	what  string
	size  int64
	limit int64
}

// beginBlock starts counting a block. A limit of 0 means no limit.
func (r *reader) beginBlock(what string, limit int) {
	r.block = block{what: what, limit: cmp.Or(int64(limit), math.MaxInt64)}
}

// spend adds strings with the given total length to the size of the block. It records
// an error of the call if the block becomes too large.
func (r *reader) spend(strings, bytes int) {
	b := &r.block
	if b.size += int64(strings)*stringCost + int64(bytes); b.size > b.limit && r.wrong == nil {
		r.object("the %s is larger than the %d bytes that its receiver takes", b.what, b.limit)
	}
}
