package call

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

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
	return link.Method{Known: true, Streams: m.clientStreams() || m.serverStreams(), NoSideEffects: hasNoSideEffects(full)}
}

// hasNoSideEffects reports whether the idempotency level of a method is NO_SIDE_EFFECTS. It
// asks the registry of generated code, as the tables that register a service do not say.
func hasNoSideEffects(full string) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return false
	}
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return false
	}
	options, ok := m.Options().(*descriptorpb.MethodOptions)
	return ok && options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
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
