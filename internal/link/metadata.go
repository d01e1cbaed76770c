package link

import "strings"

// DetailsKey is the trailer that carries a status with details over HTTP/2. A caller uses it
// as the details of a status that has none.
const DetailsKey = "grpc-status-details-bin"

// ValidKey reports whether k can be sent as a metadata key. It applies HTTP/2's rule, a
// token without upper-case letters, which allows more than gRPC's.
func ValidKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("-_.!#$%&'*+^`|~", c) < 0 {
			return false
		}
	}
	return k != ""
}
