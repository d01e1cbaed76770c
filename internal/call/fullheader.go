package call

import (
	"maps"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
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

// fullTrailer returns the callee's trailer as gRPC shows it to the caller. It drops reserved keys.
// It adds the encoded status if the status has details and the handler has not set that key
// itself. It adds the content-type if there was no header. It returns trailer itself if nothing
// changes.
func fullTrailer(trailer metadata.MD, st *status.Status, header metadata.MD, subtype string) metadata.MD {
	p := st.Proto()
	_, own := trailer[detailsKey]
	details := len(p.GetDetails()) > 0 && !own
	if !details && header != nil && !hasReserved(trailer) {
		return trailer
	}
	full := trailer.Copy()
	if full == nil {
		full = metadata.MD{}
	}
	maps.DeleteFunc(full, isReserved)
	if header == nil {
		full["content-type"] = []string{link.ContentType(subtype)}
	}
	if details {
		if b, err := proto.Marshal(p); err == nil {
			full[detailsKey] = []string{string(b)}
		}
	}
	return full
}
