package schema

import (
	"errors"
	"fmt"
	"strings"

	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The methods below resolve the types in google.protobuf.Any and extensions for packages
// proto, protojson and prototext. A name that the server does not know is
// protoregistry.NotFound, as these packages expect.

// FindMessageByName implements [protoregistry.MessageTypeResolver].
func (s *Server) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	d, err := s.resolve(name)
	if err != nil {
		return nil, err
	}
	m, ok := d.(protoreflect.MessageDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a message", name)
	}
	if err := Complete(m); err != nil {
		return nil, err
	}
	return dynamicpb.NewMessageType(m), nil
}

// FindMessageByURL implements [protoregistry.MessageTypeResolver].
func (s *Server) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	return s.FindMessageByName(protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:]))
}

// FindExtensionByName implements [protoregistry.ExtensionTypeResolver].
func (s *Server) FindExtensionByName(name protoreflect.FullName) (protoreflect.ExtensionType, error) {
	d, err := s.resolve(name)
	if err != nil {
		return nil, err
	}
	x, ok := d.(protoreflect.ExtensionDescriptor)
	if !ok || !x.IsExtension() {
		return nil, fmt.Errorf("%s is not an extension", name)
	}
	return extension(x)
}

func (s *Server) resolve(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	d, err := s.Find(name)
	if errors.Is(err, ErrNotFound) {
		return nil, protoregistry.NotFound
	}
	return d, err
}

// FindExtensionByNumber implements [protoregistry.ExtensionTypeResolver].
func (s *Server) FindExtensionByNumber(message protoreflect.FullName, number protoreflect.FieldNumber) (protoreflect.ExtensionType, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, err := s.types.FindExtensionByNumber(message, number)
	if err != nil {
		err = s.fetch(fmt.Sprintf("extension %d of %s", number, message), &rpb.ServerReflectionRequest{
			MessageRequest: &rpb.ServerReflectionRequest_FileContainingExtension{
				FileContainingExtension: &rpb.ExtensionRequest{ContainingType: string(message), ExtensionNumber: int32(number)},
			},
		})
		if errors.Is(err, ErrNotFound) {
			return nil, protoregistry.NotFound
		}
		if err != nil {
			return nil, err
		}
		if x, err = s.types.FindExtensionByNumber(message, number); err != nil {
			return nil, err
		}
	}
	return extension(x.TypeDescriptor())
}

// extension returns the type of x if it is complete.
func extension(x protoreflect.ExtensionDescriptor) (protoreflect.ExtensionType, error) {
	if m := x.Message(); m != nil {
		if err := Complete(m); err != nil {
			return nil, err
		}
	}
	return dynamicpb.NewExtensionType(x), nil
}
