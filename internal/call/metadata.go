package call

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

// outgoing returns a copy of ctx's outgoing metadata for the wire: validated by grpc-go's rules,
// and without the keys that gRPC reserves. The copy is nil if there is no metadata.
func outgoing(ctx context.Context) (metadata.MD, error) {
	md, added := grpcinside.Outgoing(ctx)
	n := len(md)
	for _, kv := range added {
		n += len(kv) / 2
	}
	if n == 0 {
		return nil, nil
	}
	if err := validate(md); err != nil {
		return nil, err
	}
	out := join(make(metadata.MD, n), md)
	for _, kv := range added {
		for i := 0; i+1 < len(kv); i += 2 {
			if err := validatePair(kv[i], kv[i+1]); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
			if !reserved(kv[i]) {
				out[kv[i]] = append(out[kv[i]], kv[i+1])
			}
		}
	}
	return out, nil
}

// validate checks md by grpc-go's rules for metadata. Its error has code Internal.
func validate(md metadata.MD) error {
	for k, vals := range md {
		if err := validatePair(k, vals...); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// validatePair checks a key and its values by grpc-go's rules, with its error texts. Keys
// have characters [0-9a-z-_.] or begin with a colon. Values are printable ASCII if the
// key does not end in -bin.
func validatePair(key string, vals ...string) error {
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

// reserved reports whether key is reserved by gRPC. Such keys are dropped from users' metadata.
func reserved(key string) bool {
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

// isReserved is reserved for an entry of metadata, which is a key and its values.
func isReserved(key string, _ []string) bool { return reserved(key) }

func hasReserved(md metadata.MD) bool {
	for k := range md {
		if reserved(k) {
			return true
		}
	}
	return false
}

// join appends more to md, like metadata.Join but in place. It drops reserved keys and
// keys without values, which are not sent. The values are copied.
func join(md, more metadata.MD) metadata.MD {
	if md == nil {
		md = make(metadata.MD, len(more))
	}
	for k, vals := range more {
		if len(vals) > 0 && !reserved(k) {
			md[k] = append(md[k], vals...)
		}
	}
	return md
}

// detailsKey is the trailer that carries a status with details over HTTP/2. Handlers may
// set it themselves: see statusWith.
const detailsKey = link.DetailsKey

// validTrailer checks a trailer by HTTP/2's rules, with the error texts of grpc-go's client. In
// grpc-go the server sends trailers unchecked, and the client refuses invalid ones.
func validTrailer(md metadata.MD) error {
	for k, vals := range md {
		if !link.ValidKey(k) {
			return fmt.Errorf("invalid header field name %q", k)
		}
		if strings.HasSuffix(k, "-bin") {
			continue
		}
		for _, v := range vals {
			if !link.ValidText(v) {
				return fmt.Errorf("invalid header field value for %q", k)
			}
		}
	}
	return nil
}
