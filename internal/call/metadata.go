package call

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/link"
)

// outgoing returns the metadata that the user attached to ctx, as it travels:
// validated as grpc-go does it, without the keys that gRPC reserves for
// itself. The result shares nothing with the user's. It is nil when there is
// none.
func outgoing(ctx context.Context) (metadata.MD, error) {
	v := ctx.Value(outgoingKey)
	if v == nil {
		return nil, nil
	}
	raw, ok := rawOutgoing(v)
	if !ok {
		merged, _ := metadata.FromOutgoingContext(ctx)
		raw.md = merged
	}
	n := len(raw.md)
	for _, kv := range raw.added {
		n += len(kv) / 2
	}
	if n == 0 {
		return nil, nil
	}
	out := make(metadata.MD, n)
	for k, vals := range raw.md {
		if err := validatePair(k, vals...); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if len(vals) > 0 && !reserved(k) {
			out[k] = append([]string(nil), vals...)
		}
	}
	for _, kv := range raw.added {
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

// rawMetadata mirrors what package metadata keeps in a context for outgoing
// calls. The merged form that it exports has its keys in lower case already,
// and an upper-case key is an error that must be seen.
type rawMetadata struct {
	md    metadata.MD
	added [][]string
}

// mirrored says whether rawMetadata has the layout of package metadata's own
// type. It is checked once; where a later version of grpc-go differs, the
// merged form is used.
var mirrored = func() (ok bool) {
	probe := metadata.AppendToOutgoingContext(context.Background(), "k", "v")
	theirs, ours := reflect.TypeOf(probe.Value(outgoingKey)), reflect.TypeFor[rawMetadata]()
	if theirs == nil || theirs.Kind() != reflect.Struct || theirs.NumField() != ours.NumField() || theirs.Size() != ours.Size() {
		return false
	}
	for i := range ours.NumField() {
		if theirs.Field(i).Type != ours.Field(i).Type || theirs.Field(i).Offset != ours.Field(i).Offset {
			return false
		}
	}
	return true
}()

// rawOutgoing reads v, a value of package metadata's type. Its layout was
// compared field by field, and an interface holds a struct of more than one
// word by pointer.
func rawOutgoing(v any) (rawMetadata, bool) {
	if !mirrored {
		return rawMetadata{}, false
	}
	type iface struct{ typ, data unsafe.Pointer }
	return *(*rawMetadata)((*iface)(unsafe.Pointer(&v)).data), true
}

// validate applies the rules of gRPC's metadata to md.
func validate(md metadata.MD) error {
	for k, vals := range md {
		if err := validatePair(k, vals...); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// validatePair has grpc-go's rules and words: keys of [0-9a-z-_.], values of
// printable ASCII unless the key ends in -bin; the keys of pseudo-headers are
// passed over.
func validatePair(key string, vals ...string) error {
	if key == "" {
		return fmt.Errorf("there is an empty key in the header")
	}
	for i := range len(key) {
		if key[0] == ':' {
			break
		}
		if c := key[i]; !(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '.' && c != '-' && c != '_' {
			return fmt.Errorf("header key %q contains illegal characters not in [0-9a-z-_.]", key)
		}
	}
	if strings.HasSuffix(key, "-bin") {
		return nil
	}
	for _, v := range vals {
		for i := range len(v) {
			if v[i] < 0x20 || v[i] > 0x7E {
				return fmt.Errorf("header key %q contains value with non-printable ASCII characters", key)
			}
		}
	}
	return nil
}

// reserved reports whether gRPC keeps key for itself, so that it is dropped
// from what users send.
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

// join appends more to md, as metadata.Join but in place, dropping what gRPC
// reserves and keys without values, which do not travel. The values are copied.
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

// detailsKey is the trailer that carries a status with its details over HTTP/2.
// Handlers may set it themselves: see statusWith.
const detailsKey = "grpc-status-details-bin"

// validTrailer has HTTP/2's rules and the words of grpc-go's client. grpc-go's
// server sends a trailer unchecked, and its client refuses one that breaks
// these.
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

// contentType is the content-type of gRPC for a subtype.
func contentType(subtype string) string {
	if subtype == "" {
		return "application/grpc"
	}
	return "application/grpc+" + subtype
}
