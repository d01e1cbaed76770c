package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// maxFiles and maxDepth bound what a server can make this process do. A file is one deeper than
// the files that it imports.
const (
	maxFiles = 20_000
	maxDepth = 1_000
)

func broken(format string, args ...any) error {
	return status.Errorf(codes.Internal, "the server's reflection is not usable: "+format, args...)
}

// add links encoded files. Servers send the files that these import along or when they are
// asked.
func (s *Server) add(files [][]byte) error {
	paths, err := s.keep(files)
	for _, path := range paths {
		if err == nil {
			_, err = s.link(path)
		}
	}
	return err
}

// keep decodes files for link to find, and returns their paths.
func (s *Server) keep(files [][]byte) (paths []string, err error) {
	for _, encoded := range files {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(encoded, file); err != nil {
			return nil, broken("a file cannot be decoded: %v", err)
		}
		if s.protos[file.GetName()] == nil {
			s.protos[file.GetName()] = file
		}
		paths = append(paths, file.GetName())
	}
	if len(s.protos) > maxFiles {
		return nil, broken("it has more than %d files", maxFiles)
	}
	return paths, nil
}

// link returns the file at path with what it imports. It returns nil without an error if the
// server has no such file.
func (s *Server) link(path string) (protoreflect.FileDescriptor, error) {
	if d, err := s.files.FindFileByPath(path); err == nil {
		return d, nil
	}
	file, err := s.proto(path)
	if err != nil || file == nil {
		return nil, err
	}
	if slices.Contains(s.linking, path) || len(s.linking) >= maxDepth {
		return nil, broken("%s imports itself, or too many others in a row", path)
	}
	s.linking = append(s.linking, path)
	defer func() { s.linking = s.linking[:len(s.linking)-1] }()
	lacks := false
	for _, imported := range file.GetDependency() {
		d, err := s.link(imported)
		if err != nil {
			return nil, err
		}
		lacks = lacks || d == nil
	}
	if lacks {
		if file, err = s.importTypes(file); err != nil {
			return nil, err
		}
	}
	// Servers often lack files that are imported for options only. Types that such a file
	// would have are placeholders, and Complete finds them.
	d, err := protodesc.FileOptions{AllowUnresolvable: true}.New(file, s.files)
	if err == nil {
		err = s.files.RegisterFile(d)
	}
	if err != nil {
		return nil, broken("%s: %v", path, err)
	}
	return d, nil
}

// importTypes returns file with imports of the files that have its types, if the server finds
// them by their names. A server can have a file at another path than its importers say, if these
// were compiled in another folder.
func (s *Server) importTypes(file *descriptorpb.FileDescriptorProto) (*descriptorpb.FileDescriptorProto, error) {
	file = proto.CloneOf(file)
	for _, name := range typesIn(file) {
		d, err := s.find(name)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return nil, err
		case !slices.Contains(file.Dependency, d.ParentFile().Path()):
			file.Dependency = append(file.Dependency, d.ParentFile().Path())
		}
	}
	return file, nil
}

// typesIn returns the names of the types that file uses and does not declare, each once.
func typesIn(file *descriptorpb.FileDescriptorProto) (names []protoreflect.FullName) {
	seen := make(map[string]bool)
	own := func(scope, name string) string {
		scope = scope + "." + name
		seen[scope] = true
		return scope
	}
	var used []string
	fields := func(all []*descriptorpb.FieldDescriptorProto) {
		for _, f := range all {
			used = append(used, f.GetTypeName(), f.GetExtendee())
		}
	}
	enums := func(scope string, all []*descriptorpb.EnumDescriptorProto) {
		for _, e := range all {
			own(scope, e.GetName())
		}
	}
	var messages func(scope string, all []*descriptorpb.DescriptorProto)
	messages = func(scope string, all []*descriptorpb.DescriptorProto) {
		for _, m := range all {
			scope := own(scope, m.GetName())
			fields(m.Field)
			fields(m.Extension)
			enums(scope, m.EnumType)
			messages(scope, m.NestedType)
		}
	}
	scope := ""
	if file.GetPackage() != "" {
		scope = "." + file.GetPackage()
	}
	messages(scope, file.MessageType)
	enums(scope, file.EnumType)
	fields(file.Extension)
	for _, service := range file.Service {
		for _, m := range service.Method {
			used = append(used, m.GetInputType(), m.GetOutputType())
		}
	}
	for _, name := range used {
		if full, ok := strings.CutPrefix(name, "."); ok && !seen[name] {
			seen[name] = true
			names = append(names, protoreflect.FullName(full))
		}
	}
	return names
}

// proto returns the file at path from the server or, since they are the same everywhere, from
// the files of this program, such as those of google.protobuf. It returns nil if neither has it.
func (s *Server) proto(path string) (*descriptorpb.FileDescriptorProto, error) {
	if file, ok := s.protos[path]; ok {
		return file, nil
	}
	reply, err := s.ask(&rpb.ServerReflectionRequest{MessageRequest: &rpb.ServerReflectionRequest_FileByFilename{FileByFilename: path}})
	if err == nil {
		_, err = s.keep(reply.GetFileDescriptorResponse().GetFileDescriptorProto())
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	if s.protos[path] == nil {
		s.protos[path] = nil // do not ask again
		if d, err := protoregistry.GlobalFiles.FindFileByPath(path); err == nil {
			s.protos[path] = protodesc.ToFileDescriptorProto(d)
		}
	}
	return s.protos[path], nil
}

// Complete returns an error if a message, or one that it can contain, is in a file that the
// server did not send.
func Complete(m protoreflect.MessageDescriptor) error {
	return complete(m, make(map[protoreflect.FullName]bool))
}

func complete(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) error {
	if m.IsPlaceholder() {
		return fmt.Errorf("the server's reflection does not describe %s", m.FullName())
	}
	if seen[m.FullName()] {
		return nil
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		if e := field.Enum(); e != nil && e.IsPlaceholder() {
			return fmt.Errorf("the server's reflection does not describe %s, of field %s", e.FullName(), field.FullName())
		}
		if inner := field.Message(); inner != nil {
			if err := complete(inner, seen); err != nil {
				return err
			}
		}
	}
	return nil
}
