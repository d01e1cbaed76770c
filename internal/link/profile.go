package link

import "strings"

// A Profile holds the properties that most calls of a client have in common. Calls share it.
type Profile struct {
	Authority      string
	UserAgent      string
	ContentSubtype string // lower case; empty for protobuf
	Encoding       string // name of the compressor; empty for none
	Accept         string // names of the compressors that replies may use, comma-separated
	Shared         bool   // both sides share messages

	invalid  string // what Invalid returns
	longType string // the content-type, if it is kept: see longSubtype
}

// The content-type of a subtype of at least longSubtype bytes is made once and kept.
const longSubtype = 256

// ContentType returns gRPC's content-type for a content-subtype.
func ContentType(subtype string) string {
	if subtype == "" {
		return "application/grpc"
	}
	return "application/grpc+" + subtype
}

// Subtype returns the content-subtype of one of gRPC's content-types, in lower case.
func Subtype(contentType string) string {
	sub, ok := strings.CutPrefix(contentType, "application/grpc")
	if !ok || sub == "" {
		return ""
	}
	return strings.ToLower(sub[1:])
}

// ContentType returns the content-type of p's subtype.
func (p *Profile) ContentType() string {
	if p.longType != "" {
		return p.longType
	}
	return ContentType(p.ContentSubtype)
}

// Check validates p's strings, once rather than for each call, and returns p. It must be
// called for each profile made of a user's or a peer's strings.
func (p *Profile) Check() *Profile {
	switch {
	case !ValidText(p.Authority):
		p.invalid = "authority"
	case !ValidText(p.UserAgent):
		p.invalid = "user agent"
	case !ValidText(p.ContentSubtype):
		p.invalid = "content subtype"
	case !ValidText(p.Encoding):
		p.invalid = "encoding"
	case !ValidText(p.Accept):
		p.invalid = "list of accepted encodings"
	default:
		p.invalid = ""
	}
	p.longType = ""
	if len(p.ContentSubtype) >= longSubtype {
		p.longType = ContentType(p.ContentSubtype)
	}
	return p
}

// Invalid names the first string that Check found invalid by [ValidText], or is empty if
// all are valid. A call with an invalid profile must not reach a handler.
func (p *Profile) Invalid() string { return p.invalid }

// ValidText reports whether s may be the value of a header: it must have no control characters but
// tabs. This is HTTP/2's rule, which grpc-go applies to a call's headers in addition to its own
// rules for metadata. Spaces, non-ASCII characters and even invalid UTF-8 are allowed.
func ValidText(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
