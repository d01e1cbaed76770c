package call

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

// Validate checks md by grpc-go's rules for metadata. Its error has code Internal.
func Validate(md metadata.MD) error {
	for k, vals := range md {
		if err := ValidatePair(k, vals...); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// ValidatePair checks a key and its values by grpc-go's rules, with its error texts. Keys
// have characters [0-9a-z-_.] or begin with a colon. Values are printable ASCII if the
// key does not end in -bin.
func ValidatePair(key string, vals ...string) error {
	if key == "" {
		return fmt.Errorf("there is an empty key in the header")
	}
	if key[0] != ':' && strings.ContainsFunc(key, illegalInKey) {
		return fmt.Errorf("header key %q contains illegal characters not in [0-9a-z-_.]", key)
	}
	if strings.HasSuffix(key, "-bin") {
		return nil
	}
	for _, v := range vals {
		if strings.ContainsFunc(v, func(c rune) bool { return c < 0x20 || c > 0x7E }) {
			return fmt.Errorf("header key %q contains value with non-printable ASCII characters", key)
		}
	}
	return nil
}

func illegalInKey(c rune) bool {
	return !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_')
}

// Reserved reports whether key is reserved by gRPC. Such keys are dropped from users' metadata.
func Reserved(key string) bool {
	if key != "" && key[0] == ':' {
		return true
	}
	switch key {
	case "content-type", "user-agent", "te", "grpc-message-type", "grpc-encoding",
		"grpc-message", "grpc-status", "grpc-timeout":
		return true
	}
	return false
}

// Join appends more to md, like metadata.Join but in place. It drops reserved keys and
// keys without values, which are not sent. The values are copied.
func Join(md, more metadata.MD) metadata.MD {
	if md == nil {
		md = make(metadata.MD, len(more))
	}
	for k, vals := range more {
		if len(vals) > 0 && !Reserved(k) {
			md[k] = append(md[k], vals...)
		}
	}
	return md
}

// isReserved is reserved for an entry of metadata, which is a key and its values.
func isReserved(key string, _ []string) bool { return Reserved(key) }

func hasReserved(md metadata.MD) bool {
	for k := range md {
		if Reserved(k) {
			return true
		}
	}
	return false
}

// gRPC shows its caller more keys in a header and a trailer than the callee sends.

// FullHeader returns a copy of md, the header that the callee has sent, without reserved keys and
// with gRPC's content-type. It returns nil for nil.
func FullHeader(md metadata.MD, subtype string) metadata.MD {
	if md == nil {
		return nil
	}
	full := md.Copy()
	maps.DeleteFunc(full, isReserved)
	full["content-type"] = []string{link.ContentType(subtype)}
	return full
}

// FullTrailer returns the trailer of end as gRPC shows it to the caller. It drops reserved keys. It
// adds the encoded status if the status has details and the handler has not set that key itself. It
// adds the content-type if the callee has answered without a header. It returns the trailer itself
// if nothing changes.
func FullTrailer(end *link.End, header metadata.MD, subtype string) metadata.MD {
	trailer, p := end.Trailer, end.Status.Proto()
	_, own := trailer[link.DetailsKey]
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
			full[link.DetailsKey] = []string{string(b)}
		}
	}
	return full
}

// Outgoing returns a copy of ctx's Outgoing metadata for the wire: validated by grpc-go's rules,
// and without the keys that gRPC reserves. The copy is nil if there is no metadata.
func Outgoing(ctx context.Context) (metadata.MD, error) {
	md, added := grpcinside.Outgoing(ctx)
	n := len(md)
	for _, kv := range added {
		n += len(kv) / 2
	}
	if n == 0 {
		return nil, nil
	}
	if err := Validate(md); err != nil {
		return nil, err
	}
	out := Join(make(metadata.MD, n), md)
	for _, kv := range added {
		for i := 0; i+1 < len(kv); i += 2 {
			if err := ValidatePair(kv[i], kv[i+1]); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
			if !Reserved(kv[i]) {
				out[kv[i]] = append(out[kv[i]], kv[i+1])
			}
		}
	}
	return out, nil
}
