package schema

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jhump/protoreflect/v2/protoresolve"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// gaps hold stand-ins for files that other files import and the server lacks. An empty file stands
// in for each of them, which is enough if it is imported for options only. A server can also have
// the file at another path than the importing files say, if these were compiled in another folder.
// The server then finds the file by the names of its types. A type without content stands in for
// each type that the server does not find.
//
// gaps are the fallback resolver of the reflection client. When the client links a file, it asks
// for one type after the other, and fails at the first type that gaps do not find.
type gaps struct {
	asked    string                                            // what the server is asked for, which has no stand-in
	lacking  protoreflect.FullName                             // the last type that no file of the server's had
	types    map[protoreflect.FullName]protoreflect.Descriptor // stand-ins
	importer *descriptorpb.FileDescriptorProto                 // a stand-in, which imports the files of all types publicly
}

// nowhere is the path of stand-ins for types.
const nowhere = "not described"

func newGaps() gaps {
	g := gaps{types: make(map[protoreflect.FullName]protoreflect.Descriptor), importer: new(descriptorpb.FileDescriptorProto)}
	g.makeImport(nowhere)
	return g
}

func (g *gaps) makeImport(path string) {
	if n := len(g.importer.Dependency); !slices.Contains(g.importer.Dependency, path) {
		g.importer.Dependency, g.importer.PublicDependency = append(g.importer.Dependency, path), append(g.importer.PublicDependency, int32(n))
	}
}

// FindFileByPath implements [protodesc.Resolver]. Files of this program, such as those of
// google.protobuf, are the same everywhere.
func (g *gaps) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	d, err := protoregistry.GlobalFiles.FindFileByPath(path)
	if err == nil || path == g.asked {
		return d, err
	}
	g.importer.Name = &path
	return protodesc.FileOptions{AllowUnresolvable: true}.New(g.importer, nil)
}

// FindDescriptorByName implements [protodesc.Resolver].
func (g *gaps) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if string(name) == g.asked {
		return nil, protoregistry.NotFound
	}
	g.lacking = name
	if d := g.types[name]; d != nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

// fillLocked finds the file of a type, or declares a stand-in for the type: first a message, and
// the next time an enum. If it has tried both, it returns cause, the client's error.
func (s *Server) fillLocked(name protoreflect.FullName, cause error) error {
	switch s.gaps.types[name].(type) {
	case nil:
		s.gaps.types[name] = standIn(name, anyMessage)
		file, err := s.declaringLocked(name)
		if errors.Is(err, protoregistry.NotFound) {
			return nil
		}
		if err == nil {
			s.gaps.makeImport(file.Path())
		}
		return err
	case protoreflect.MessageDescriptor: // the error may be that it should be an enum
		s.gaps.types[name] = standIn(name, anyEnum)
		return nil
	}
	return cause
}

// A type without content, in the form of prototext. Its file uses editions, because these allow
// what files of proto2 and of proto3 use the type for.
const (
	anyMessage = `message_type { name: %q extension_range { start: 1 end: 536870912 } }`
	anyEnum    = `enum_type { name: %q value { name: "NOT_DESCRIBED" number: 0 } }`
)

// standIn declares a type of a kind.
func standIn(name protoreflect.FullName, kind string) protoreflect.Descriptor {
	text := fmt.Sprintf(`name: %q package: %q syntax: "editions" edition: EDITION_2023 `+kind, nowhere, name.Parent(), name.Name())
	file := new(descriptorpb.FileDescriptorProto)
	if err := prototext.Unmarshal([]byte(text), file); err != nil {
		return nil
	}
	d, err := protodesc.NewFile(file, nil)
	if err != nil {
		return nil
	}
	return protoresolve.FindDescriptorByNameInFile(d, name)
}

// Lacks reports whether the server's reflection does not describe a type that it mentions.
func Lacks(d protoreflect.Descriptor) bool { return d.ParentFile().Path() == nowhere }

// Complete returns an error if a message, or one that it can contain, is in a file that the
// server did not send.
func Complete(m protoreflect.MessageDescriptor) error {
	return complete(m, make(map[protoreflect.FullName]bool))
}

func complete(d protoreflect.Descriptor, seen map[protoreflect.FullName]bool) error {
	if Lacks(d) {
		return fmt.Errorf("the server does not describe %s", d.FullName())
	}
	m, ok := d.(protoreflect.MessageDescriptor)
	if !ok || seen[m.FullName()] {
		return nil
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		for _, of := range []protoreflect.Descriptor{m.Fields().Get(i).Message(), m.Fields().Get(i).Enum()} {
			if of == nil {
				continue
			}
			if err := complete(of, seen); err != nil {
				return err
			}
		}
	}
	return nil
}
