package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// printed returns d as describe prints it.
func printed(d protoreflect.Descriptor) string {
	var text strings.Builder
	printSource(&text, d)
	return text.String()
}

// loadFiles returns the files of testdata/descriptors.binpb. A compiler makes the same descriptors, in
// another order, of the .proto files beside it.
func loadFiles(t testing.TB) *protoregistry.Files {
	t.Helper()
	encoded, err := os.ReadFile(filepath.Join("testdata", "descriptors.binpb"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := linkFiles(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func linkFiles(encoded []byte) (*protoregistry.Files, error) {
	// As from a server, options of the set's own arrive as unknown fields.
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(encoded, set); err != nil {
		return nil, err
	}
	files := new(protoregistry.Files)
	for _, d := range []protoreflect.FileDescriptor{
		descriptorpb.File_google_protobuf_descriptor_proto, anypb.File_google_protobuf_any_proto, timestamppb.File_google_protobuf_timestamp_proto,
	} {
		if err := files.RegisterFile(d); err != nil {
			return nil, err
		}
	}
	for _, file := range set.GetFile() {
		d, err := protodesc.FileOptions{AllowUnresolvable: true}.New(file, files)
		if err == nil {
			err = files.RegisterFile(d)
		}
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func TestFilesArePrintedAsTheirSource(t *testing.T) {
	files := loadFiles(t)
	for _, path := range []string{"proto2.proto", "proto3.proto", "edition2023.proto"} {
		d, err := files.FindFileByPath(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("testdata", path))
		if err != nil {
			t.Fatal(err)
		}
		if got := printed(d); got != string(want) {
			t.Errorf("%s is printed as\n%s", path, got)
		}
	}
}

// What a file declares is printed as in the file, and a part in what contains it.
func TestSymbolsArePrinted(t *testing.T) {
	files := loadFiles(t)
	for name, want := range map[string]string{
		"rich.three.google":         "message google {\n  .rich.two.Note c = 1;\n}\n",
		"rich.three.google.c":       "message google {\n  .rich.two.Note c = 1;\n}\n",
		"rich.three.Svc.Unary":      "service Svc {\n  rpc Unary ( .rich.three.Msg ) returns ( .rich.three.Msg );\n}\n",
		"rich.three.None":           "service None {\n}\n",
		"rich.two.Everything.Kind":  "enum Kind {\n  K = 0;\n}\n",
		"rich.two.Everything.K":     "enum Kind {\n  K = 0;\n}\n",
		"rich.two.unit":             "extend .google.protobuf.FieldOptions {\n  optional string unit = 50003;\n}\n",
		"rich.two.Everything.Empty": "message Empty {\n}\n",
	} {
		d, err := files.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := printed(d); got != want {
			t.Errorf("%s is printed as\n%s", name, got)
		}
	}
}

// Options whose declaration is not known are left out.
func TestUnknownOptionsAreLeftOut(t *testing.T) {
	options := &descriptorpb.MessageOptions{Deprecated: new(true)}
	options.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 50001, protowire.VarintType), 7))
	d, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("m.proto"), MessageType: []*descriptorpb.DescriptorProto{{Name: new("M"), Options: options}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := printed(d.Messages().Get(0)), "message M {\n  option deprecated = true;\n}\n"; got != want {
		t.Errorf("it is printed as\n%s", got)
	}
}

// FuzzSource prints what a hostile server could send.
func FuzzSource(f *testing.F) {
	encoded, err := os.ReadFile(filepath.Join("testdata", "descriptors.binpb"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		files, err := linkFiles(encoded)
		if err != nil {
			t.Skip(err)
		}
		files.RangeFiles(func(d protoreflect.FileDescriptor) bool {
			if !strings.HasPrefix(d.Path(), "google/protobuf/") {
				printSource(io.Discard, d)
			}
			return true
		})
	})
}
