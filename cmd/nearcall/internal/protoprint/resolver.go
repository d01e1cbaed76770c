package protoprint

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A resolver never fails: an extension that cannot be found is an unknown field.
type resolver struct {
	protoregistry.ExtensionTypeResolver
}

func (r resolver) FindExtensionByNumber(message protoreflect.FullName, n protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	x, err := r.ExtensionTypeResolver.FindExtensionByNumber(message, n)
	if err != nil {
		return nil, protoregistry.NotFound
	}
	return x, nil
}
