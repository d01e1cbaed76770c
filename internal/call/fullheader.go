package call

import (
	"maps"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/link"
)

// gRPC shows its caller more keys in a header and a trailer than the callee sends.

// fullHeader returns a copy of md, the header that the callee has sent, without reserved keys and
// with gRPC's content-type. It returns nil for nil.
func fullHeader(md metadata.MD, subtype string) metadata.MD {
	if md == nil {
		return nil
	}
	full := md.Copy()
	maps.DeleteFunc(full, isReserved)
	full["content-type"] = []string{link.ContentType(subtype)}
	return full
}

// fullTrailer returns the trailer of end as gRPC shows it to the caller. It drops reserved keys.
// It adds the encoded status if the status has details and the handler has not set that key
// itself. It adds the content-type if the callee has answered without a header. It returns the trailer
// itself if nothing changes.
func fullTrailer(end *link.End, header metadata.MD, subtype string) metadata.MD {
	trailer, p := end.Trailer, end.Status.Proto()
	_, own := trailer[detailsKey]
	details, first := len(p.GetDetails()) > 0 && !own, header == nil && !end.Local
	if !details && !first && !hasReserved(trailer) {
		return trailer
	}
	full := trailer.Copy()
	if full == nil {
		full = metadata.MD{}
	}
	maps.DeleteFunc(full, isReserved)
	if first {
		full["content-type"] = []string{link.ContentType(subtype)}
	}
	if details {
		if b, err := proto.Marshal(p); err == nil {
			full[detailsKey] = []string{string(b)}
		}
	}
	return full
}
