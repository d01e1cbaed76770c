package orders_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearcall/nearcall/internal/testing/needs"
)

const (
	root  = "../.."
	guide = root + "/docs/migrate.md"
)

// gofmtLines returns the gofmt commands of the guide, in order.
func gofmtLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "gofmt ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		t.Fatalf("%s has no line that starts with gofmt", guide)
	}
	return lines
}

// canMoveOver skips a test if the guide's lines cannot be run here.
func canMoveOver(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"sh", "gofmt", "grep", "xargs"} {
		needs.Program(t, tool)
	}
}

// moveOver runs the guide's lines in dir, as a reader would.
func moveOver(t *testing.T, dir string) {
	t.Helper()
	for _, line := range gofmtLines(t) {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "cannot use -w with standard input") {
			t.Fatalf("%s\n%v\n%s", line, err, out)
		}
	}
}

// TestGofmtMovesTheProgramOver checks that the guide's lines turn before into exactly after, and leave what
// both share as it is.
func TestGofmtMovesTheProgramOver(t *testing.T) {
	canMoveOver(t)
	dir := t.TempDir()
	for _, part := range []string{"before", "shop"} {
		if err := os.CopyFS(dir, os.DirFS(part)); err != nil {
			t.Fatal(err)
		}
	}
	moveOver(t, dir)

	made, want := files(t, dir), files(t, "after")
	for name, text := range files(t, "shop") {
		if made[name] != text {
			t.Errorf("the lines change shop/%s:\n%s", name, made[name])
		}
		delete(made, name)
	}
	if os.Getenv("UPDATE") != "" {
		for name, text := range made {
			if err := os.WriteFile(filepath.Join("after", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	if got, want := slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Errorf("the lines make the files %v, after has %v", got, want)
	}
	for name, text := range made {
		if text != want[name] {
			t.Errorf("after/%s is not what the lines make of before/%[1]s (UPDATE=1 writes it):\n%s", name, text)
		}
	}
	for name, text := range files(t, "before") {
		if strings.Contains(text, "nearcall.New") {
			t.Errorf("before/%s has moved over already", name)
		}
	}
}

// mixed is a program whose only file needs both packages, with client interceptors, invokers,
// streamers and handlers of grpc-gateway in all spellings that the lines handle. http.ServeMux stands
// for grpc-gateway's runtime.ServeMux.
const mixed = `package main

import (
	"context"
	"log"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

type app struct {
	srv  *grpc.Server
	conn *grpc.ClientConn
}

func send(ctx context.Context, method string, req, reply interface{}, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoker(ctx, method, req, reply, cc, opts...)
}

func sendNamed(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
	return invoker(ctx, method, req, reply, cc, opts...)
}

func sendEach(ctx context.Context, method string, req any, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoker(ctx, method, req, reply, cc, opts...)
}

func sendEachNamed(
	ctx context.Context,
	method string,
	req any,
	reply any,
	cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) (err error) {
	return invoker(ctx, method, req, reply, cc, opts...)
}

func refuse(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
	return nil
}

func stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(ctx, desc, cc, method, opts...)
}

func streamNamed(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (cs grpc.ClientStream, err error) {
	return streamer(ctx, desc, cc, method, opts...)
}

func refuseStream(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, nil
}

func check(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(ctx, req)
}

var invoke grpc.UnaryInvoker = func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return nil
}

func invokeNamed(_ context.Context, _ string, _, _ interface{}, _ *grpc.ClientConn, _ ...grpc.CallOption) (err error) {
	return nil
}

func invokeEach(ctx context.Context, method string, req any, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
	return nil
}

func invokeEachNamed(ctx context.Context, method string, req any, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) (err error) {
	return nil
}

func invokeNothing(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
	return nil
}

var open grpc.Streamer = func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, nil
}

func openNamed(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (cs grpc.ClientStream, err error) {
	return nil, nil
}

func openNothing(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, nil
}

var (
	invokers  = []grpc.UnaryInvoker{invoke, invokeNamed, invokeEach, invokeEachNamed, invokeNothing}
	streamers = []grpc.Streamer{open, openNamed, openNothing}
)

type (
	handler         func(ctx context.Context, mux *http.ServeMux, conn *grpc.ClientConn) error
	handlerNamed    func(ctx context.Context, mux *http.ServeMux, conn *grpc.ClientConn) (err error)
	handlerUnnamed  func(context.Context, *http.ServeMux, *grpc.ClientConn) error
	endpoint        func(ctx context.Context, mux *http.ServeMux, endpoint string, opts []grpc.DialOption) error
	endpointNamed   func(ctx context.Context, mux *http.ServeMux, endpoint string, opts []grpc.DialOption) (err error)
	endpointUnnamed func(context.Context, *http.ServeMux, string, []grpc.DialOption) error
)

// generated returns functions as grpc-gateway generates them. Their types come from grpc.Dial, which
// the lines leave alone.
func generated[C, O any](func(string, ...O) (C, error)) (func(context.Context, *http.ServeMux, C) error, func(context.Context, *http.ServeMux, string, []O) error) {
	return nil, nil
}

func main() {
	conn, err := grpc.NewClient("localhost:1", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(send),
		grpc.WithChainUnaryInterceptor(sendNamed, sendEach, sendEachNamed, refuse),
		grpc.WithChainStreamInterceptor(stream, streamNamed, refuseStream))
	if err != nil {
		log.Fatal(err)
	}
	a := &app{srv: grpc.NewServer(grpc.ChainUnaryInterceptor(check), grpc.EmptyServerOption{}, grpc.InTapHandle(nil)), conn: conn}
	a.srv.Stop()
	var none grpc.DialOption = grpc.EmptyDialOption{}
	_, _ = grpc.NewClient("localhost:1", none)
	var options []grpc.CallOption
	_, _ = grpc.NewClientStream(context.Background(), &grpc.StreamDesc{}, a.conn, "/a/B")
	_, _ = grpc.NewClientStream(context.Background(), &grpc.StreamDesc{}, a.conn, "/a/B", grpc.WaitForReady(true))
	_, _ = grpc.NewClientStream(context.Background(), &grpc.StreamDesc{}, a.conn, "/a/B", options...)
	h, e := generated(grpc.Dial)
	_, _, _ = handler(h), handlerNamed(h), handlerUnnamed(h)
	_, _, _ = endpoint(e), endpointNamed(e), endpointUnnamed(e)
}
`

// TestGoimportsAddsTheSecondImport migrates and builds a file that needs both imports.
func TestGoimportsAddsTheSecondImport(t *testing.T) {
	if testing.Short() {
		t.Skip("builds goimports")
	}
	needs.Program(t, "go")
	canMoveOver(t)
	dir := t.TempDir()
	goimports := filepath.Join(dir, "goimports.exe")
	build := exec.Command("go", "build", "-modfile=tools/lint/go.mod", "-o", goimports, "golang.org/x/tools/cmd/goimports")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("cannot build goimports here: %v\n%s", err, out)
	}

	program := filepath.Join(dir, "program")
	if err := os.Mkdir(program, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(program, "main.go")
	if err := os.WriteFile(file, []byte(mixed), 0o644); err != nil {
		t.Fatal(err)
	}
	moveOver(t, program)

	// -srcdir and the overlay make the file part of this module, so that imports resolve.
	here, err := filepath.Abs("mixed")
	if err != nil {
		t.Fatal(err)
	}
	place := filepath.Join(here, "main.go")
	if out, err := exec.Command(goimports, "-srcdir", filepath.Dir(here), "-w", file).CombinedOutput(); err != nil {
		t.Fatalf("goimports: %v\n%s", err, out)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: file}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-overlay", overlayFile, "-o", filepath.Join(dir, "program.exe"), "./mixed").CombinedOutput()
	if err != nil {
		text, _ := os.ReadFile(file)
		t.Fatalf("the program does not build after the lines and goimports: %v\n%s\n%s", err, out, text)
	}
}

// TestLinesAreComplete compares the guide's lines with package nearcall: each new name must
// exist, and each option that grpc-go has under the same name must have a line.
func TestLinesAreComplete(t *testing.T) {
	rename := regexp.MustCompile(`'grpc\.(\w+) -> nearcall\.(\w+)'`)
	renamed := make(map[string]bool)
	ours := exported(t, root)
	for _, line := range gofmtLines(t) {
		m := rename.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if m[1] != m[2] {
			t.Errorf("names stay, but: %s", line)
		}
		if !ours[m[2]] {
			t.Errorf("package nearcall has no %s", m[2])
		}
		renamed[m[1]] = true
	}

	needs.Program(t, "go")
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "google.golang.org/grpc").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs := exported(t, strings.TrimSpace(string(out)))
	for name := range ours {
		if theirs[name] && !renamed[name] {
			t.Errorf("%s has no line for %s, which grpc-go has under the same name", guide, name)
		}
	}
}

// TestMissingOptionsAreNamed checks that the guide names each option of grpc-go that package
// nearcall does not have.
func TestMissingOptionsAreNamed(t *testing.T) {
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## What is left to you\n")
	if !found {
		t.Fatalf("%s has no section of what is left to do", guide)
	}
	named := make(map[string]bool)
	for _, name := range regexp.MustCompile(`\w+`).FindAllString(rest, -1) {
		named[name] = true
	}

	needs.Program(t, "go")
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "google.golang.org/grpc").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours, n := exported(t, root), 0
	for file, text := range files(t, strings.TrimSpace(string(out))) {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !fn.Name.IsExported() || fn.Type.Results == nil || ours[fn.Name.Name] {
				continue
			}
			of, ok := fn.Type.Results.List[0].Type.(*ast.Ident)
			if !ok || of.Name != "ServerOption" && of.Name != "DialOption" {
				continue
			}
			if n++; !named[fn.Name.Name] {
				t.Errorf("%s does not say what to do for the %s %s, which nearcall does not have", guide, of.Name, fn.Name.Name)
			}
		}
	}
	if n == 0 {
		t.Error("found no option in grpc-go that nearcall does not have")
	}
}

// exported returns the exported functions and types of the package in dir.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for name, text := range files(t, dir) {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil && decl.Name.IsExported() {
					names[decl.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok && spec.Name.IsExported() {
						names[spec.Name.Name] = true
					}
				}
			}
		}
	}
	return names
}

// files returns the Go files in dir, except tests, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	names, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	texts := make(map[string]string)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(text)
	}
	return texts
}
