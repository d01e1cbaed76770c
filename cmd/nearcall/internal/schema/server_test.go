package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/internal/testing/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A scripted server has files, in prototext, by path. It sends the file for each symbol that
// is in symbols, and nothing that a file imports. Nothing in it is checked.
type scripted struct {
	rpb.UnimplementedServerReflectionServer
	files, symbols map[string]string
	file           func(what string) string // makes the file for a symbol or path if files has none
	asked          []string
	hangUp         bool // end the stream after each reply
}

func (s *scripted) ServerReflectionInfo(stream rpb.ServerReflection_ServerReflectionInfoServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		path := req.GetFileByFilename()
		if symbol := req.GetFileContainingSymbol(); symbol != "" {
			path = s.symbols[symbol]
			s.asked = append(s.asked, symbol)
		} else {
			s.asked = append(s.asked, path)
		}
		reply := &rpb.ServerReflectionResponse{MessageResponse: &rpb.ServerReflectionResponse_ErrorResponse{
			ErrorResponse: &rpb.ErrorResponse{ErrorCode: int32(codes.NotFound)},
		}}
		if path == "refused" {
			reply.GetErrorResponse().ErrorCode = int32(codes.PermissionDenied)
		}
		text, ok := s.files[path]
		if !ok && s.file != nil {
			text = s.file(s.asked[len(s.asked)-1])
			ok = text != ""
		}
		if ok {
			file, encoded := new(descriptorpb.FileDescriptorProto), []byte(text)
			if prototext.Unmarshal(encoded, file) == nil {
				encoded, _ = proto.Marshal(file)
			}
			reply.MessageResponse = &rpb.ServerReflectionResponse_FileDescriptorResponse{
				FileDescriptorResponse: &rpb.FileDescriptorResponse{FileDescriptorProto: [][]byte{encoded}},
			}
		}
		if err := stream.Send(reply); err != nil || s.hangUp {
			return err
		}
	}
}

func (s *scripted) open(t *testing.T) *Server {
	t.Helper()
	srv := nearcall.NewServer()
	rpb.RegisterServerReflectionServer(srv, s)
	conn := srv.Client()
	server := New(t.Context(), conn)
	t.Cleanup(func() {
		server.Close()
		_ = conn.Close()
		srv.Stop()
	})
	return server
}

const (
	outer = `name: "outer.proto" package: "p" dependency: "inner.proto" dependency: "missing.proto" dependency: "google/protobuf/any.proto"
		message_type { name: "Outer"
			field { name: "inner" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".p.Inner" }
			field { name: "any" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Any" } }
		message_type { name: "Broken" field { name: "gone" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".missing.Gone" } }
		message_type { name: "Enums" field { name: "gone" number: 1 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".missing.Kind" } }`
	inner = `name: "inner.proto" package: "p" message_type { name: "Inner" }`
)

// TestImportsAreFetched checks a server that sends only what it is asked for, and lacks files.
func TestImportsAreFetched(t *testing.T) {
	for name, hangUp := range map[string]bool{"one stream": false, "a stream for each request": true} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{files: map[string]string{"outer.proto": outer, "inner.proto": inner}, symbols: map[string]string{"p.Outer": "outer.proto"}, hangUp: hangUp}
			server := s.open(t)
			d, err := server.FindDescriptorByName("p.Outer")
			if err != nil {
				t.Fatal(err)
			}
			if err := Complete(d.(protoreflect.MessageDescriptor)); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"p.Broken", "p.Enums"} {
				d, err := server.FindDescriptorByName(protoreflect.FullName(name))
				if err != nil {
					t.Fatal(err)
				}
				if err := Complete(d.(protoreflect.MessageDescriptor)); err == nil || !strings.Contains(err.Error(), "does not describe missing.") {
					t.Errorf("%s: %v", name, err)
				}
			}
			before := len(s.asked)
			for range 2 {
				if _, err := server.FindDescriptorByName("p.None"); !errors.Is(err, protoregistry.NotFound) {
					t.Error(err)
				}
			}
			if len(s.asked) != before+1 {
				t.Errorf("it asks again for what is not there: %q", s.asked)
			}
		})
	}
}

// TestTypesAreFoundByName checks files whose imports the server has at other paths.
func TestTypesAreFoundByName(t *testing.T) {
	s := &scripted{
		files: map[string]string{
			"user.proto": `name: "user.proto" package: "u" syntax: "proto2" dependency: "moved/types.proto"
				message_type { name: "Q"
					field { name: "self" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".u.Q" }
					field { name: "t" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".types.T.Inner" }
					field { name: "kind" number: 3 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".types.Kind" }
					nested_type { name: "N" field { name: "own" number: 1 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".u.Q.Own" } }
					enum_type { name: "Own" value { name: "ZERO" number: 0 } } }
				message_type { name: "R" field { name: "gone" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".types.Gone" } }
				service { name: "S" method { name: "Do" input_type: ".u.Q" output_type: ".types.T" } }
				extension { name: "more" extendee: ".types.T" number: 100 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".u.Q" }`,
			"types.proto": `name: "types.proto" package: "types" syntax: "proto2"
				message_type { name: "T" nested_type { name: "Inner" } extension_range { start: 100 end: 200 } }
				enum_type { name: "Kind" value { name: "NONE" number: 0 } }`,
		},
		symbols: map[string]string{"u.Q": "user.proto", "types.T": "types.proto", "types.T.Inner": "types.proto", "types.Kind": "types.proto"},
	}
	server := s.open(t)
	d, err := server.FindDescriptorByName("u.Q")
	if err != nil {
		t.Fatal(err)
	}
	if err := Complete(d.(protoreflect.MessageDescriptor)); err != nil {
		t.Error(err)
	}
	do := d.ParentFile().Services().ByName("S").Methods().ByName("Do")
	if err := Complete(do.Output()); err != nil {
		t.Error(err)
	}
	if more := d.ParentFile().Extensions().ByName("more").ContainingMessage(); more.IsPlaceholder() {
		t.Errorf("the extension is of %v", more)
	}
	gone := d.ParentFile().Messages().ByName("R")
	if err := Complete(gone); err == nil || !strings.Contains(err.Error(), "does not describe types.Gone") {
		t.Errorf("a message that the server does not have: %v", err)
	}
	asked := slices.DeleteFunc(s.asked, func(what string) bool { return what == "moved/types.proto" })
	if want := "u.Q types.T.Inner types.Gone"; strings.Join(asked, " ") != want {
		t.Errorf("it asks for %q", asked)
	}
}

// TestBrokenReflectionIsAnError checks that nothing a server sends makes a client panic or
// loop.
func TestBrokenReflectionIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"an import of itself":    {map[string]string{"a": `name: "a" dependency: "b"`, "b": `name: "b" dependency: "a"`}, "cyclic import path: a -> b -> a"},
		"an invalid file":        {map[string]string{"a": `name: "a" syntax: "proto9"`}, "invalid syntax"},
		"no descriptor":          {map[string]string{"a": "\xff\xff"}, "cannot parse invalid wire-format data"},
		"a file without a name":  {map[string]string{"a": `package: "p"`}, "file path must be populated"},
		"another file":           {map[string]string{"a": `name: "other"`}, "not found"},
		"a name that is taken":   {map[string]string{"a": `name: "a" dependency: "b" message_type { name: "A" }`, "b": `name: "b" message_type { name: "A" }`}, "conflict"},
		"a file that is refused": {map[string]string{"a": `name: "a" dependency: "refused"`}, "PermissionDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{files: c.files, symbols: map[string]string{"X": "a"}}
			if _, err := s.open(t).FindDescriptorByName("X"); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %q in it", err, c.says)
			}
		})
	}
}

// TestEndlessReflectionIsAnError checks servers that make up a file for each question.
func TestEndlessReflectionIsAnError(t *testing.T) {
	defer func(most int) { maxAnswers = most }(maxAnswers)
	maxAnswers = 8 << 20
	for name, c := range map[string]struct {
		file func(what string) string
		says string
	}{
		"each file imports the next": {func(what string) string {
			return fmt.Sprintf("name: %q dependency: %q", what, what+"x")
		}, "import tree depth"},
		"each file imports two": {func(what string) string {
			if len(what) > 500 {
				return fmt.Sprintf("name: %q", what)
			}
			return fmt.Sprintf("name: %q dependency: %q dependency: %q", what, what+"x", what+"y")
		}, "describes too much"},
		"each type is found by its name and needs the next": {func(what string) string {
			if name, found := strings.CutPrefix(what, "p."); found {
				return fmt.Sprintf(`name: "%s.proto" package: "p" dependency: "gone" message_type { name: "%s"
					field { name: "next" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".p.%sx" } }`, name, name, name)
			}
			return ""
		}, "describes too much"},
		"each type is found in a file that needs it": {func(what string) string {
			if what == "gone" {
				return ""
			}
			return `name: "a" package: "p" dependency: "gone" message_type { name: "X"
				field { name: "other" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".p.Other" } }`
		}, "not found"},
		"large files": {func(what string) string {
			return fmt.Sprintf("name: %q dependency: %q options { go_package: %q }", what, what+"x", strings.Repeat("x", 1<<20))
		}, "describes too much"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (&scripted{file: c.file}).open(t).FindDescriptorByName("p.X"); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %q in it", err, c.says)
			}
		})
	}
}

// TestCloseDoesNotWaitForAServerThatDoesNotEndItsCall checks that Close cancels such a call.
func TestCloseDoesNotWaitForAServerThatDoesNotEndItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := new(lingering)
		server := New(t.Context(), conn)
		if _, err := server.Services(); err != nil {
			t.Fatal(err)
		}
		server.Close()
		if conn.calls != 1 || conn.ctx.Err() == nil {
			t.Errorf("%d calls, and the last one's context is %v", conn.calls, conn.ctx.Err())
		}
	})
}

// A lingering server lists no services, and ends no call.
type lingering struct {
	grpc.ClientConnInterface
	grpc.ClientStream
	ctx   context.Context
	calls int
}

func (l *lingering) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	l.ctx, l.calls = ctx, l.calls+1
	return l, nil
}

func (*lingering) SendMsg(any) error { return nil }

func (*lingering) CloseSend() error { return nil }

func (l *lingering) RecvMsg(m any) error {
	reply, ok := m.(*rpb.ServerReflectionResponse)
	if !ok {
		<-l.ctx.Done()
		return l.ctx.Err()
	}
	reply.MessageResponse = &rpb.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: new(rpb.ListServiceResponse)}
	return nil
}

// FuzzFind links what a hostile server could send.
func FuzzFind(f *testing.F) {
	for _, text := range []string{outer, inner} {
		file := new(descriptorpb.FileDescriptorProto)
		if err := prototext.Unmarshal([]byte(text), file); err != nil {
			f.Fatal(err)
		}
		encoded, err := proto.Marshal(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		server := New(t.Context(), answers(encoded))
		defer server.Close()
		d, err := server.FindDescriptorByName("p.Outer")
		if m, ok := d.(protoreflect.MessageDescriptor); ok && err == nil {
			_ = Complete(m)
		}
	})
}

// answers is a connection whose server answers each request with one file.
type answers []byte

func (answers) Invoke(_ context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	return net.ErrClosed
}

func (a answers) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return answer{file: a}, nil
}

type answer struct {
	grpc.ClientStream
	file []byte
}

func (answer) SendMsg(any) error { return nil }

func (answer) CloseSend() error { return nil }

func (a answer) RecvMsg(m any) error {
	reply, ok := m.(*rpb.ServerReflectionResponse)
	if !ok {
		return io.ErrUnexpectedEOF
	}
	reply.MessageResponse = &rpb.ServerReflectionResponse_FileDescriptorResponse{
		FileDescriptorResponse: &rpb.FileDescriptorResponse{FileDescriptorProto: [][]byte{a.file}},
	}
	return nil
}
