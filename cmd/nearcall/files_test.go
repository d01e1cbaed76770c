package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/nearcall/nearcall/examples/orders/orderspb"
)

// written writes a file in dir and returns its path.
func written(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func encodedSet(t *testing.T, files ...*descriptorpb.FileDescriptorProto) string {
	t.Helper()
	encoded, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: files})
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

const ordersFolder = "../../examples/orders/orderspb"

// TestFilesReplaceReflection looks at servers without reflection, and calls them.
func TestFilesReplaceReflection(t *testing.T) {
	ordersFile := protodesc.ToFileDescriptorProto(orderspb.File_examples_orders_orderspb_orders_proto)
	set := written(t, tempDir(t), "orders.binpb", encodedSet(t, ordersFile, ordersFile))
	silent := func(srv server) { orderspb.RegisterOrdersServer(srv, plainShop{}) }
	onEveryPath(t, silent, func(t *testing.T, target string) {
		for _, flags := range [][]string{
			{"-proto", ordersFolder + "/orders.proto"},
			{"-proto", "orders.proto", "-import-path", ordersFolder},
			{"-proto", ordersFolder + "/orders.proto", "-import-path", "../.."},
			{"-protoset", set, "-protoset", set},
		} {
			with := func(command string, args ...string) []string {
				return slices.Concat([]string{command}, flags, []string{target}, args)
			}
			if got := succeeds(t, with("list")...); got != orders+"\n" {
				t.Errorf("%q: the services are %q", flags, got)
			}
			if got := succeeds(t, with("list", orders)...); got != methods {
				t.Errorf("%q: the methods are %q", flags, got)
			}
			const message = "message AwaitRequest {\n  int64 id = 1;\n}\n"
			if got := succeeds(t, with("describe", "nearcall.examples.orders.AwaitRequest")...); !strings.HasSuffix(got, message) {
				t.Errorf("%q: the message is printed as\n%s", flags, got)
			}
			const order = `{"id":"1","item":"tea"}` + "\n"
			if got := succeeds(t, with("call", "-compact", orders+"/Place", `{"item":"tea"}`)...); got != order {
				t.Errorf("%q: the reply is %q", flags, got)
			}
			if got := completions(t, with("call", orders+"/P")...); !slices.Contains(got, orders+"/Place") {
				t.Errorf("%q: %q are offered", flags, got)
			}
			fails(t, exitFailed, "did you mean "+orders, with("list", "Orders")...)
			for _, args := range [][]string{with("list"), with("list", orders), with("describe"), with("describe", orders)} {
				alone := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == target })
				if got, want := succeeds(t, alone...), succeeds(t, args...); got != want {
					t.Errorf("%q, without a target: %q, want %q", args, got, want)
				}
			}
		}
	})
}

// Without a call, no server is needed. Files have comments, options and imports.
func TestFilesAreDescribedWithoutAServer(t *testing.T) {
	file := written(t, tempDir(t), "a.proto", "syntax = \"proto3\";\n// A thing.\nmessage A {\n}\n")
	if got := succeeds(t, "describe", "-proto", file, "tcp:127.0.0.1:1", "A"); got != "A is a message:\n// A thing.\nmessage A {\n}\n" {
		t.Errorf("the message is printed as\n%s", got)
	}
}

func TestBadFilesAreExplained(t *testing.T) {
	dir := tempDir(t)
	lacking := written(t, dir, "lacking.binpb", encodedSet(t, &descriptorpb.FileDescriptorProto{Name: new("half.proto"), Dependency: []string{"gone.proto"}}))
	for _, c := range []struct {
		flags []string
		code  int
		says  string
	}{
		{[]string{"-proto", "a", "-protoset", "b"}, 2, "[proto protoset]"},
		{[]string{"-proto", dir + "/no.proto"}, 1, "no.proto"},
		{[]string{"-proto", ordersFolder + "/orders.proto", "-import-path", dir}, 1, "orders.proto does not reside in any import path"},
		{[]string{"-proto", written(t, dir, "a.proto", `syntax = "proto3"; import "gone.proto";`)}, 1, "a.proto:1:"},
		{[]string{"-proto", written(t, dir, "b.proto", `syntax = "proto3"; message M { N n = 1; }`)}, 1, "unknown type N"},
		{[]string{"-proto", written(t, dir, "c.proto", `syntax = "proto3"; mess`)}, 1, "c.proto:1:20: syntax error"},
		{[]string{"-protoset", dir + "/no.binpb"}, 1, "open " + dir + "/no.binpb"},
		{[]string{"-protoset", written(t, dir, "text", "\xff")}, 1, "could not parse contents of protoset file"},
		{[]string{"-protoset", lacking}, 1, `no descriptor found for "gone.proto"`},
		{[]string{"-protoset", written(t, dir, "none", "")}, 0, ""},
	} {
		if c.code == exitOK {
			succeeds(t, append([]string{"list"}, append(c.flags, "tcp:127.0.0.1:1")...)...)
			continue
		}
		fails(t, c.code, c.says, append([]string{"list"}, append(c.flags, "tcp:127.0.0.1:1")...)...)
	}
}
