package call

import (
	"github.com/nearcall/nearcall/internal/codec"
	"github.com/nearcall/nearcall/internal/link"
)

// Method returns what is known about the method with a full name. It must be called after
// Start.
func (s *Server) Method(full string) link.Method {
	m := s.methods[full]
	if m == nil {
		return link.Method{}
	}
	return link.Method{Known: true, Streams: m.clientStreams() || m.serverStreams(), NoSideEffects: link.HasNoSideEffects(full)}
}

// HasCodec reports whether the server has a codec for a content-subtype.
func (s *Server) HasCodec(subtype string) bool {
	if s.cfg.Codec != nil && subtype == s.cfg.Codec.Name() || subtype == codec.NameJSON {
		return true
	}
	if subtype == "" || len(subtype) > maxName {
		return false
	}
	_, ok := codec.Get(subtype)
	return ok
}

// Compressors returns the names of the registered compressors. The result must not be
// modified.
func Compressors() []string { return registered }
