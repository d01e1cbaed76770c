package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nearcall/nearcall/internal/wire"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// evil controls a terminal and a shell, if they let it: by ESC, by the C1 control CSI, by marks that
// turn text around, by lines of its own, and by what shells expand.
const evil = "E\x1b[31m\u009b2J\b\x7f\u202e\u2066\u200f\r\nFORGED\u2028FORGED\u2029FORGED\u0085FORGED\t$(touch /tmp/x)`id`'\";|&"

// A hostile server has evil in whatever it can name and say.
type hostile struct {
	rpb.UnimplementedServerReflectionServer
	healthpb.UnimplementedHealthServer
	metricspb.UnimplementedMetricsServer
	services []string
}

// hostileFiles are what the reflection of a hostile server has, by symbol or path. EVIL stands for evil.
var hostileFiles = map[string]string{
	"g.Greeter": `name: "EVIL.proto" package: "g" syntax: "proto2"
		message_type { name: "M" field { name: "f" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING default_value: "EVIL" json_name: "j" }
			options { uninterpreted_option { name { name_part: "EVIL" is_extension: false } string_value: "EVIL" } } }
		service { name: "Greeter"
			method { name: "Greet" input_type: ".g.M" output_type: ".g.M" } method { name: "Fail" input_type: ".g.M" output_type: ".g.M" } }
		options { go_package: "EVIL" }
		source_code_info { location { path: [6, 0] span: [1, 1, 2] leading_comments: "EVIL" } location { path: [4, 0] span: [1, 1, 2] trailing_comments: "EVIL" } }`,
	"g.Method":  `name: "method" package: "g" service { name: "Method" method { name: "EVIL" input_type: ".g.M" output_type: ".g.M" } }`,
	"g.Type":    `name: "type" package: "g" dependency: "EVIL" service { name: "Type" method { name: "M" input_type: ".g.EVIL" output_type: ".EVIL" } }`,
	"g.Package": `name: "package" package: "EVIL" service { name: "Package" }`,
	"g.Import":  `name: "import" package: "g" dependency: "EVIL" service { name: "Import" } options { php_namespace: "EVIL" }`,
	"g.Text":    `EVIL`,
}

func (s *hostile) ServerReflectionInfo(stream rpb.ServerReflection_ServerReflectionInfoServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		reply := &rpb.ServerReflectionResponse{MessageResponse: &rpb.ServerReflectionResponse_ErrorResponse{
			ErrorResponse: &rpb.ErrorResponse{ErrorCode: int32(codes.NotFound), ErrorMessage: evil},
		}}
		text, ok := hostileFiles[req.GetFileContainingSymbol()]
		switch {
		case req.GetFileContainingSymbol() == "g.Refused":
			reply.GetErrorResponse().ErrorCode = int32(codes.PermissionDenied)
		case ok:
			reply.MessageResponse = &rpb.ServerReflectionResponse_FileDescriptorResponse{
				FileDescriptorResponse: &rpb.FileDescriptorResponse{FileDescriptorProto: [][]byte{hostileFile(text)}},
			}
		}
		if _, ok := req.GetMessageRequest().(*rpb.ServerReflectionRequest_ListServices); ok {
			list := new(rpb.ListServiceResponse)
			for _, name := range s.services {
				list.Service = append(list.Service, &rpb.ServiceResponse{Name: name})
			}
			reply.MessageResponse = &rpb.ServerReflectionResponse_ListServicesResponse{ListServicesResponse: list}
		}
		if err := stream.Send(reply); err != nil {
			return nil
		}
	}
}

// hostileFile encodes a file in prototext.
func hostileFile(text string) []byte {
	file := new(descriptorpb.FileDescriptorProto)
	quoted, _ := json.Marshal(evil)
	if prototext.Unmarshal([]byte(strings.ReplaceAll(text, "EVIL", strings.Trim(string(quoted), `"`))), file) != nil {
		return []byte(evil)
	}
	encoded, _ := proto.Marshal(file)
	return encoded
}

func (*hostile) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return nil, status.Error(codes.NotFound, evil)
}

func (*hostile) Get(context.Context, *metricspb.GetRequest) (*metricspb.Snapshot, error) {
	return &metricspb.Snapshot{
		Methods:   []*metricspb.Method{{Name: "/" + evil, Begun: 1}},
		Sessions:  []*metricspb.Sessions{{Side: evil, Path: evil}},
		NotNearer: []*metricspb.NotNearer{{Reason: evil}},
	}, nil
}

func (s *hostile) register(srv server) {
	rpb.RegisterServerReflectionServer(srv, s)
	healthpb.RegisterHealthServer(srv, s)
	metricspb.RegisterMetricsServer(srv, s)
	greet := func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-bin", evil))
		return wrapperspb.String(evil), decode(new(wrapperspb.StringValue))
	}
	fail := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		detail, err := anypb.New(wrapperspb.String(evil))
		if err := errors.Join(err, decode(new(wrapperspb.StringValue))); err != nil {
			return nil, err
		}
		st := status.New(codes.NotFound, evil).Proto()
		st.Details = []*anypb.Any{detail, {TypeUrl: "x/" + evil}, {TypeUrl: "x/" + evil, Value: []byte{1}}, {TypeUrl: "x/g.M", Value: []byte{1}}}
		return nil, status.ErrorProto(st)
	}
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: "g.Greeter", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		{MethodName: "Greet", Handler: greet}, {MethodName: "Fail", Handler: fail},
	}}, struct{}{})
}

// hangsUp listens for clients of nearcall, and ends each connection at once, with evil as the reason.
func hangsUp(t *testing.T) (target string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = lis.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, len(wire.Question)))
			hello := wire.AppendHello([]byte(wire.Answer+wire.Magic), &wire.Hello{Version: wire.Version, Stream: wire.MinWindow, Connection: wire.MinWindow, Block: wire.MinBlock})
			_, _ = conn.Write(wire.AppendBye(hello, wire.ByeClosed, evil))
			_, _ = conn.Read(make([]byte, 1<<10)) // or the client would see a reset
			_ = conn.Close()
		}
	}()
	return "tcp:" + lis.Addr().String()
}

// harmless checks that text has nothing that a terminal obeys, and that no line of it is the server's,
// but for the source that describe prints: all of that is the server's.
func harmless(t *testing.T, args []string, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "FORGED") && args[0] != "describe" {
			t.Errorf("%q: the server's line is %q", args, line)
		}
	}
	obeyed := func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
	}
	if strings.ContainsFunc(text, obeyed) || !utf8.ValidString(text) {
		t.Errorf("%q: a terminal obeys %q", args, text)
	}
}

// TestAHostileServerCannotControlTheTerminal runs every command that connects to a server.
func TestAHostileServerCannotControlTheTerminal(t *testing.T) {
	s := &hostile{services: []string{"g.Greeter", "g.Greet" + evil, "g.Method", "g.Type", "g.Package", "g.Import", "g.Text", "g.Refused", "-d=@x", evil}}
	onEveryPath(t, s.register, func(t *testing.T, target string) {
		for _, args := range [][]string{
			{"list"}, {"list", "g.Greeter"}, {"list", "g.Greett"}, {"list", "g.Method"}, {"list", "g.Refused"}, {"list", "g.Package"}, {"list", "g.Text"},
			{"describe"}, {"describe", "g.Greeter"}, {"describe", "g.Greeter.Fail"}, {"describe", "g.M"}, {"describe", "g.Greett"}, {"describe", "g.Method"},
			{"describe", "g.Type"}, {"describe", "g.Package"}, {"describe", "g.Import"}, {"describe", "g.Text"}, {"describe", "g.Refused"},
			{"call"}, {"call", "g.Greeter/Greet", "{}"}, {"call", "-v", "g.Greeter/Greet", "{}"}, {"call", "-compact", "g.Greeter/Greet", "{}"},
			{"call", "-v", "g.Greeter/Fail", "{}"}, {"call", "g.Greeter/Greeet"}, {"call", "Greeet"}, {"call", "g.Greeter/Greet", `{"j": 1}`}, {"call", "g.Type/M", "{}"},
			{"health"}, {"health", "x"}, {"resolve"}, {"resolve", "-json"}, {"top", "-n", "2", "-interval", "1ms"},
		} {
			last := len(args)
			if last > 1 && !strings.HasPrefix(args[last-1], "-") {
				last = slices.IndexFunc(args[1:], func(s string) bool { return !strings.HasPrefix(s, "-") }) + 1
			}
			if args[0] == "top" {
				last = len(args)
			}
			args := slices.Insert(slices.Clone(args), last, target)
			_, stdout, stderr := nearcallCommand(t, args...)
			if stdout == "" && stderr == "" {
				t.Errorf("%q prints nothing", args)
			}
			harmless(t, args, stdout)
			harmless(t, args, stderr)
			if args[1] == "-compact" {
				reply := make(map[string]string)
				if err := json.Unmarshal([]byte(stdout), &reply); err != nil || reply["j"] != evil {
					t.Errorf("%q: %v: the reply is %q, stderr %q", args, err, stdout, stderr)
				}
			}
		}
	})
	t.Run("no session", func(t *testing.T) {
		target, nowhere := hangsUp(t), "unix:/nowhere/"+evil
		for _, args := range [][]string{
			{"list", target}, {"describe", target}, {"call", target, "g.Greeter/Greet", "{}"}, {"health", "-max-time", "60", target}, {"top", target},
			{"resolve", nowhere}, {"resolve", "-json", nowhere}, {"proxy", "tcp:127.0.0.1:0", nowhere},
		} {
			code, stdout, stderr := nearcallCommand(t, args...)
			if said := stdout + stderr; code == exitOK || !strings.Contains(said, "FORGED") {
				t.Errorf("%q: exit code %d, it says %q", args, code, said)
			}
			harmless(t, args, stdout)
			harmless(t, args, stderr)
		}
	})
}

// TestCompletionOffersNoCommands checks that shells can insert what a server, or another user's
// folder, is named.
func TestCompletionOffersNoCommands(t *testing.T) {
	target := serveNear(t, "tcp:127.0.0.1:0", (&hostile{services: []string{
		"g.Greeter", "g.Greeter;id", "g.Greeter$(id)", "g.Greeter`id`", "g.Greeter|id", "g.Greeter&id", "g.Greeter id", "g.Greeter\tid", "g.Greeter\nid",
		"g.Greeter'id", `g.Greeter"id`, `g.Greeter\id`, "g.Greeter>id", "g.Greeter<id", "g.Greeter{a,b}", "g.Greeter[a]", "g.Greeter*", "g.Greeter?", "g.Greeter!id",
		"g.Greeter^id", "~", "#", "-d=@/etc/passwd", "-", "g.Greeter\x1b[2J", "g.Greeter\u009b2J", "g.Greeter\u202e", "g.Greeter\u00a0id", "g.Greeter\u3000id",
	}}).register)
	for _, command := range []string{"list", "describe", "call", "health"} {
		for _, begun := range []string{"", "g", "g.Greeter"} {
			for _, got := range completions(t, command, target, begun) {
				switch got {
				case "g.Greeter", "g.Greeter/Greet", "g.Greeter/Fail", "g.M":
				default:
					t.Errorf("%s %s: %q is offered", command, begun, got)
				}
			}
		}
	}
}

// An inventing server makes up a file, in prototext, for each question. It does not end its calls.
type inventing func(what string) string

func (f inventing) ServerReflectionInfo(stream rpb.ServerReflection_ServerReflectionInfoServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			<-stream.Context().Done()
			return nil
		}
		reply := &rpb.ServerReflectionResponse{MessageResponse: &rpb.ServerReflectionResponse_FileDescriptorResponse{
			FileDescriptorResponse: &rpb.FileDescriptorResponse{FileDescriptorProto: [][]byte{hostileFile(f(req.GetFileByFilename() + req.GetFileContainingSymbol()))}},
		}}
		if err := stream.Send(reply); err != nil {
			return nil
		}
	}
}

func TestEndlessReflectionIsAnError(t *testing.T) {
	defer func(most int) { maxAnswers = most }(maxAnswers)
	maxAnswers = 8 << 20
	for says, file := range map[string]inventing{
		"import tree depth": func(what string) string { return fmt.Sprintf("name: %q dependency: %q", what, what+"x") },
		"cyclic import path": func(what string) string {
			return fmt.Sprintf("name: %q dependency: %q", what, map[bool]string{true: "a", false: "b"}[what == "b"])
		},
		"describes too much": func(what string) string {
			if len(what) > 500 {
				return fmt.Sprintf("name: %q", what)
			}
			return fmt.Sprintf("name: %q dependency: %q dependency: %q", what, what+"x", what+"y")
		},
		"it describes too much": func(what string) string {
			return fmt.Sprintf("name: %q dependency: %q options { go_package: %q }", what, what+"x", strings.Repeat("x", 1<<20))
		},
	} {
		target := serveNear(t, "tcp:127.0.0.1:0", func(srv server) { rpb.RegisterServerReflectionServer(srv, file) })
		fails(t, 64+13, says, "describe", target, "p.X")
	}
}
