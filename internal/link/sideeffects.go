package link

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// HasNoSideEffects reports whether the idempotency level of a method is NO_SIDE_EFFECTS. It looks
// in the registry of generated code, because a grpc.ServiceDesc does not contain that level.
func HasNoSideEffects(full string) bool {
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
