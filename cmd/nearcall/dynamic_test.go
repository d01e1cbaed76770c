package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	v1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// boxes has types that the command does not have: an extension, and a message that only a
// google.protobuf.Any mentions, in a file that only the extension's file imports. A third file imports
// one that the server does not have.
const boxes = `
file {
  name: "box.proto" package: "box" syntax: "proto2" dependency: "google/protobuf/any.proto"
  message_type {
    name: "Box"
    field { name: "any" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Any" json_name: "any" }
    field { name: "must" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING json_name: "must" }
    extension_range { start: 100 end: 200 }
  }
  service { name: "Boxes" method { name: "Echo" input_type: ".box.Box" output_type: ".box.Box" } }
}
file {
  name: "ext.proto" package: "box" syntax: "proto2" dependency: "box.proto" dependency: "inner.proto"
  extension { name: "inner" extendee: ".box.Box" number: 100 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".box.Inner" json_name: "inner" }
}
file {
  name: "inner.proto" package: "box" syntax: "proto2"
  message_type { name: "Inner" field { name: "n" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 json_name: "n" } }
}
file {
  name: "half.proto" package: "box" syntax: "proto2" dependency: "gone.proto"
  message_type {
    name: "Half"
    field { name: "gone" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".gone.Gone" json_name: "gone" }
    field { name: "n" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 json_name: "n" }
  }
  service { name: "Halves" method { name: "Echo" input_type: ".box.Half" output_type: ".gone.Gone" } }
}`

// withBoxes registers a service whose Echo returns what it gets, or fails with an Any as its
// status if that has a field named must.
func withBoxes(t *testing.T) func(server) {
	set := new(descriptorpb.FileDescriptorSet)
	if err := prototext.Unmarshal([]byte(boxes), set); err != nil {
		t.Fatal(err)
	}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(anypb.File_google_protobuf_any_proto))
	files, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	d, err := files.FindDescriptorByName("box.Box")
	if err != nil {
		t.Fatal(err)
	}
	echo := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		m := dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
		if err := decode(m); err != nil {
			return nil, err
		}
		if must := m.Get(m.Descriptor().Fields().ByName("must")).String(); must != "" {
			st := status.New(codes.DataLoss, must).Proto()
			st.Details = []*anypb.Any{{TypeUrl: "example.com/not.known"}, {TypeUrl: "x/box.Inner", Value: []byte{8}}}
			return nil, status.ErrorProto(st)
		}
		return m, nil
	}
	return func(srv server) {
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: "box.Boxes", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: echo}}}, struct{}{})
		v1.RegisterServerReflectionServer(srv, reflection.NewServerV1(reflection.ServerOptions{
			Services: srv, DescriptorResolver: files, ExtensionResolver: ranging{dynamicpb.NewTypes(files)},
		}))
	}
}

type ranging struct{ *dynamicpb.Types }

func (r ranging) RangeExtensionsByMessage(name protoreflect.FullName, f func(protoreflect.ExtensionType) bool) {
	if x, err := r.FindExtensionByNumber(name, 100); err == nil {
		f(x)
	}
}

// TestTypesAreResolvedByTheServer checks types that only the server knows, in requests and
// replies.
func TestTypesAreResolvedByTheServer(t *testing.T) {
	onEveryPath(t, withBoxes(t), func(t *testing.T, target string) {
		for _, box := range []string{
			`{"any":{"@type":"type.googleapis.com/box.Inner","n":7}}`,
			`{"[box.inner]":{"n":5}}`,
			`{"any":{"@type":"x/google.protobuf.Any","value":{"@type":"y/box.Box","[box.inner]":{"n":1}}},"[box.inner]":{}}`,
		} {
			code, stdout, stderr := callWith(t, "", "-compact", target, "box.Boxes/Echo", box)
			if code != exitOK || stdout != box+"\n" || stderr != "" {
				t.Errorf("exit code %d, stderr %q, %s comes back as %s", code, stderr, box, stdout)
			}
		}
		if got := succeeds(t, "describe", target, "box.inner"); got != "box.inner is an extension:\nextend .box.Box {\n  optional .box.Inner inner = 100;\n}\n" {
			t.Errorf("the extension is printed as\n%s", got)
		}
		fails(t, exitFailed, `unknown message type "box.None"`, "call", target, "box.Boxes/Echo", `{"any":{"@type":"x/box.None"}}`)
	})
}

// TestFilesThatTheServerLacksAreNamed checks a service whose types are in a file that the server does
// not have.
func TestFilesThatTheServerLacksAreNamed(t *testing.T) {
	onEveryPath(t, withBoxes(t), func(t *testing.T, target string) {
		const says = "caused by: File not found: gone.proto"
		fails(t, exitFailed, says, "list", target, "box.Halves")
		fails(t, exitFailed, says, "describe", target, "box.Halves.Echo")
		fails(t, exitFailed, says, "call", target, "box.Halves/Echo", "{}")
	})
}

// TestUnknownDetailsDoNotHideTheStatus checks details whose type is not known, and details
// that are broken.
func TestUnknownDetailsDoNotHideTheStatus(t *testing.T) {
	onEveryPath(t, withBoxes(t), func(t *testing.T, target string) {
		code, stdout, stderr := callWith(t, "", target, "box.Boxes/Echo", `{"must":"fail"}`)
		if code != 64+15 || stdout != "" || !strings.HasPrefix(stderr, "nearcall: DataLoss: fail\n    {\n") ||
			!strings.Contains(stderr, "not.known is not recogni") || !strings.Contains(stderr, "a detail of type x/box.Inner cannot be printed: ") {
			t.Errorf("exit code %d, stdout %q, stderr\n%s", code, stdout, stderr)
		}
	})
}
