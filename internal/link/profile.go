package link

// A Profile is what the calls of one client mostly have in common, and share.
type Profile struct {
	Authority      string
	UserAgent      string
	ContentSubtype string // lower case; empty for protobuf
	Encoding       string // name of the compressor; empty for none
	Accept         string // names of compressors that replies may be compressed with, with commas between
	Shared         bool   // both sides share messages

	invalid string // which of its texts is not valid
}

// Check looks at p's texts, so that nobody has to do so for each call, and returns p.
// Whoever makes a profile of what a user or a peer says calls it once.
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
	return p
}

// Invalid names the text that Check has found not to be valid, as [ValidText] has it. It
// is empty where all are. A call with an invalid one must not reach a handler.
func (p *Profile) Invalid() string { return p.invalid }

// ValidText reports whether s may be the value of a header: it has no control characters
// but tabs. This is HTTP/2's rule, and what grpc-go holds a call to beyond its rules for
// metadata. Spaces and what is not ASCII, or not UTF-8, may be in there.
func ValidText(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
