package link

import "strings"

// ValidKey reports whether metadata with the key k can travel. The rule is HTTP/2's,
// a token without upper-case letters, and allows more than gRPC's.
func ValidKey(k string) bool {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("-_.!#$%&'*+^`|~", c) < 0 {
			return false
		}
	}
	return k != ""
}
