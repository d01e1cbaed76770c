package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/format"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

// generatedEnv is set in the process that has generated types, which generates no others.
const generatedEnv = "NEARCALL_CODEC_GENERATED"

// TestProgramsOfRandomSchemas draws schemas of all syntaxes and APIs, generates their code with
// protoc-gen-go, and runs the tests and the seeds of the fuzz tests of this package with their types
// instead of [fuzzed]. Lazy fields are among them. MessageSet is not: protobuf-go supports it only in
// builds with the tag protolegacy. NEARCALL_SCHEMAS is the number of another seed.
func TestProgramsOfRandomSchemas(t *testing.T) {
	if testing.Short() || os.Getenv(generatedEnv) != "" {
		t.Skip("builds the tests of this package again")
	}
	needs.Program(t, "go")
	seed := os.Getenv("NEARCALL_SCHEMAS")
	if seed == "" {
		seed = "1"
	}
	var n uint64
	must(fmt.Sscan(seed, &n))
	r := rand.New(rand.NewPCG(n, 0))
	request := &pluginpb.CodeGeneratorRequest{Parameter: new("paths=source_relative")}
	var types []string
	for i, kind := range []string{"proto2", "proto3", "API_OPEN", "API_HYBRID", "API_OPAQUE"} {
		s := &schema{Rand: r, syntax: kind, prefix: string(rune('A' + i))}
		file := s.file()
		request.ProtoFile = append(request.ProtoFile, file)
		request.FileToGenerate = append(request.FileToGenerate, file.GetName())
		if strings.HasPrefix(kind, "API") {
			*request.Parameter += ",apilevelM" + file.GetName() + "=" + kind
		}
		for _, m := range file.MessageType {
			types = append(types, "(*randompb."+m.GetName()+")(nil)")
		}
	}
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	add := func(name, text string) {
		source, err := format.Source([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, source, 0o666); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, filepath.FromSlash(name))] = file
	}
	for _, f := range generated(t, request) {
		add("internal/randompb/"+f.GetName(), f.GetContent())
	}
	add("generated_test.go", "package codec\n\nimport (\n\"google.golang.org/protobuf/proto\"\n\"github.com/nearcall/nearcall/internal/codec/internal/randompb\"\n)\n\n"+
		"func init() {\n fuzzed = fuzzed[:0]\n for _, m := range []proto.Message{"+strings.Join(types, ", ")+"} { fuzzed = append(fuzzed, m) }\n}\n")
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, must(json.Marshal(map[string]any{"Replace": replace})), 0o666); err != nil {
		t.Fatal(err)
	}
	args := []string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-short", "-run", "^(TestProgramsEncodeAndDecodeAsProtobufDoes|Fuzz.*)$", "."}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), generatedEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("with NEARCALL_SCHEMAS=%s: %v\n%s", seed, err, out)
	}
}

// generated returns what protoc-gen-go makes of a request.
func generated(t *testing.T, request *pluginpb.CodeGeneratorRequest) []*pluginpb.CodeGeneratorResponse_File {
	t.Helper()
	cmd := exec.Command("go", "run", "google.golang.org/protobuf/cmd/protoc-gen-go")
	cmd.Stdin = bytes.NewReader(must(proto.Marshal(request)))
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("protoc-gen-go: %v\n%s", err, failed.Bytes())
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil || response.Error != nil {
		t.Fatalf("protoc-gen-go: %v, %s", err, response.GetError())
	}
	return response.File
}

// A schema draws one file. Its syntax is proto2, proto3, or the API of a file of edition 2023.
type schema struct {
	*rand.Rand
	syntax, prefix string
}

func (s *schema) editions() bool { return strings.HasPrefix(s.syntax, "API") }

// one reports true once in n times.
func (s *schema) one(n int) bool { return s.IntN(n) == 0 }

const perSchema = 6 // messages

func (s *schema) file() *descriptorpb.FileDescriptorProto {
	f := &descriptorpb.FileDescriptorProto{
		Name:    new(strings.ToLower(s.prefix) + ".proto"),
		Package: new("nearcall.codec.random"),
		Syntax:  &s.syntax,
		Options: &descriptorpb.FileOptions{GoPackage: new("github.com/nearcall/nearcall/internal/codec/internal/randompb")},
		EnumType: []*descriptorpb.EnumDescriptorProto{{
			Name: new(s.prefix + "Enum"),
			Value: []*descriptorpb.EnumValueDescriptorProto{
				{Name: new(s.prefix + "_ZERO"), Number: new(int32(0))}, {Name: new(s.prefix + "_MINUS"), Number: new(int32(-1))}, {Name: new(s.prefix + "_MANY"), Number: new(int32(300))},
			},
		}},
	}
	if s.editions() {
		f.Syntax, f.Edition = new("editions"), descriptorpb.Edition_EDITION_2023.Enum()
	}
	for i := range perSchema {
		f.MessageType = append(f.MessageType, s.message(i))
	}
	return f
}

func (s *schema) message(i int) *descriptorpb.DescriptorProto {
	m := &descriptorpb.DescriptorProto{Name: new(fmt.Sprint(s.prefix, i))}
	number := int32(0)
	next := func() *int32 {
		switch gap := s.IntN(12); gap {
		case 0:
			number = max(number+1, 15) // the last with a tag of one byte
		case 1:
			number = max(number+1, 2047) // and of two
		case 2:
			number += 5000
		default:
			number += int32(gap)/8 + 1
		}
		if number >= 19000 && number < 20000 { // reserved
			number = 20000
		}
		return new(number)
	}
	field := func() *descriptorpb.FieldDescriptorProto {
		n := next()
		return &descriptorpb.FieldDescriptorProto{Name: new(fmt.Sprint("f", *n)), Number: n, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	}
	var optional []*descriptorpb.FieldDescriptorProto
	for range s.IntN(14) {
		f := field()
		switch s.IntN(8) {
		case 0:
			s.oneof(m, f, field)
			continue
		case 1:
			s.entries(m, f)
		case 2, 3:
			f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			s.typed(m, f)
		default:
			s.typed(m, f)
			switch {
			case s.syntax == "proto3" && s.one(3):
				f.Proto3Optional = new(true)
				optional = append(optional, f)
			case s.syntax == "proto2" && s.one(40):
				f.Label = descriptorpb.FieldDescriptorProto_LABEL_REQUIRED.Enum()
			}
		}
		s.features(f)
		m.Field = append(m.Field, f)
	}
	for _, f := range optional { // oneofs that are none follow those that are
		f.OneofIndex = new(int32(len(m.OneofDecl)))
		m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new("_" + f.GetName())})
	}
	if s.syntax != "proto3" && s.one(3) {
		e := field()
		s.typed(nil, e)
		m.ExtensionRange = []*descriptorpb.DescriptorProto_ExtensionRange{{Start: new(number), End: new(number + 100)}}
		e.Name, e.Extendee = new("extension"), new(".nearcall.codec.random."+m.GetName())
		m.Extension = []*descriptorpb.FieldDescriptorProto{e}
	}
	return m
}

// oneof adds a oneof whose first field is f.
func (s *schema) oneof(m *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto, field func() *descriptorpb.FieldDescriptorProto) {
	at := new(int32(len(m.OneofDecl)))
	m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: new("o" + f.GetName())})
	for range 1 + s.IntN(4) {
		s.typed(m, f)
		f.OneofIndex = at
		m.Field = append(m.Field, f)
		f = field()
	}
}

// entries makes f a map.
func (s *schema) entries(m *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto) {
	key := &descriptorpb.FieldDescriptorProto{Name: new("key"), Number: new(int32(1)), Label: f.Label}
	for key.Type == nil || key.GetType() == descriptorpb.FieldDescriptorProto_TYPE_FLOAT || key.GetType() == descriptorpb.FieldDescriptorProto_TYPE_DOUBLE || key.GetType() == descriptorpb.FieldDescriptorProto_TYPE_BYTES {
		key.Type = s.scalar()
	}
	value := &descriptorpb.FieldDescriptorProto{Name: new("value"), Number: new(int32(2)), Label: f.Label}
	s.typed(nil, value)
	name := "F" + f.GetName()[1:] + "Entry"
	m.NestedType = append(m.NestedType, &descriptorpb.DescriptorProto{
		Name: &name, Field: []*descriptorpb.FieldDescriptorProto{key, value}, Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
	})
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), new(".nearcall.codec.random."+m.GetName()+"."+name)
}

// scalar draws a type that is neither message, group nor enum.
func (s *schema) scalar() *descriptorpb.FieldDescriptorProto_Type {
	for {
		switch t := descriptorpb.FieldDescriptorProto_Type(1 + s.IntN(18)); t {
		case descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, descriptorpb.FieldDescriptorProto_TYPE_GROUP, descriptorpb.FieldDescriptorProto_TYPE_ENUM:
		default:
			return &t
		}
	}
}

// typed draws f's type. A group is declared in m, unless that is nil.
func (s *schema) typed(m *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto) {
	switch s.IntN(8) {
	case 0, 1:
		f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), new(fmt.Sprint(".nearcall.codec.random.", s.prefix, s.IntN(perSchema)))
		if s.editions() && s.one(3) {
			f.Options = &descriptorpb.FieldOptions{Lazy: new(true)}
		}
	case 2:
		f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_ENUM.Enum(), new(".nearcall.codec.random."+s.prefix+"Enum")
	case 3:
		if m != nil && s.syntax == "proto2" {
			group := "G" + f.GetName()[1:]
			m.NestedType = append(m.NestedType, &descriptorpb.DescriptorProto{Name: &group, Field: []*descriptorpb.FieldDescriptorProto{
				{Name: new("x"), Number: new(int32(1)), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), Type: s.scalar()},
			}})
			f.Name = new(strings.ToLower(group))
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_GROUP.Enum(), new(".nearcall.codec.random."+m.GetName()+"."+group)
			return
		}
		fallthrough
	default:
		f.Type = s.scalar()
	}
}

// features draws options of f, a field that is in no oneof.
func (s *schema) features(f *descriptorpb.FieldDescriptorProto) {
	message := f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	packable := f.GetLabel() == descriptorpb.FieldDescriptorProto_LABEL_REPEATED && !message && f.GetType() != descriptorpb.FieldDescriptorProto_TYPE_GROUP &&
		f.GetType() != descriptorpb.FieldDescriptorProto_TYPE_STRING && f.GetType() != descriptorpb.FieldDescriptorProto_TYPE_BYTES
	if packable && !s.editions() && s.one(3) {
		f.Options = &descriptorpb.FieldOptions{Packed: new(s.one(2))}
	}
	if !s.editions() || !s.one(2) {
		return
	}
	set := new(descriptorpb.FeatureSet)
	switch {
	case packable:
		set.RepeatedFieldEncoding = descriptorpb.FeatureSet_EXPANDED.Enum()
	case f.GetLabel() == descriptorpb.FieldDescriptorProto_LABEL_REPEATED:
	case message:
		set.MessageEncoding = descriptorpb.FeatureSet_DELIMITED.Enum()
	case s.one(20):
		set.FieldPresence = descriptorpb.FeatureSet_LEGACY_REQUIRED.Enum()
	default:
		set.FieldPresence = descriptorpb.FeatureSet_IMPLICIT.Enum()
	}
	if f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_STRING && s.one(2) {
		set.Utf8Validation = descriptorpb.FeatureSet_NONE.Enum()
	}
	if f.Options == nil {
		f.Options = new(descriptorpb.FieldOptions)
	}
	f.Options.Features = set
}
