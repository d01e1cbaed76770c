// Command connectgo runs the tests of Connect v2's own transports on nearcall; see package foreign.
//
// It builds the tests of connectinprocess and those of connecthttp from outside (*_ext_test.go) with
// other imports: the packages in testdata/shim make transports of package nearconnect. A client of a
// test that it has not got from the test's server, and a server behind other handlers, stay Connect's.
// A test that makes no call with nearcall counts as skipped. Tests in bubbles of package synctest run
// in process alone, because a goroutine that waits for a socket holds up a bubble.
//
//	go run ./connectgo
//	go run ./connectgo -kinds 'inproc tcp' -tests 'connecthttp\.Server.*' -v
//
// Tests that fail must be listed in differences.tsv.
package main

import (
	"context"
	"embed"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nearcall/nearcall/interop/internal/foreign"
)

//go:embed testdata/shim
var shims embed.FS

//go:embed differences.tsv
var table string

const connectPath = "connectrpc.com/connect/v2"

var kinds = []string{"inproc", "shm", "unix", "tcp", "ws", "quic"}

func main() { project().Main() }

func project() *foreign.Project {
	return &foreign.Project{
		Name:    "connect-tests",
		Table:   table,
		Kinds:   kinds,
		Groups:  map[string][]string{"all": kinds},
		Suites:  []foreign.Suite{{Name: "connectinprocess", Dir: "connectinprocess"}, {Name: "connecthttp", Dir: "connecthttp"}},
		Convert: convert,
		List:    list,
		Marker:  "NEARCALL\n",
	}
}

// list returns the tests of a suite. Those that use package synctest run in process alone.
func list(dir string, s foreign.Suite) (tests []foreign.Test, err error) {
	files, err := filepath.Glob(filepath.Join(dir, s.Dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			t := foreign.Test{Suite: s, Name: fn.Name.Name, Run: "^" + fn.Name.Name + "$"}
			for n := range ast.Preorder(fn) {
				if id, ok := n.(*ast.Ident); ok && id.Name == "synctest" {
					t.Kinds = []string{"inproc"}
				}
			}
			tests = append(tests, t)
		}
	}
	return tests, nil
}

// convert copies Connect to dir, with the shims and converted tests.
func convert(ctx context.Context, dir string) error {
	const nearcall = "github.com/nearcall/nearcall"
	edits := []string{"mod", "edit"}
	for _, module := range []string{nearcall, nearcall + "/connect", nearcall + "/quic"} {
		at, err := foreign.Module(ctx, module)
		if err != nil {
			return err
		}
		edits = append(edits, "-require="+module+"@v0.0.0", "-replace="+module+"="+at)
	}
	from, err := foreign.Module(ctx, connectPath)
	if err != nil {
		return err
	}
	added, err := fs.Sub(shims, "testdata/shim")
	if err != nil {
		return err
	}
	err = errors.Join(foreign.Copy(dir, os.DirFS(from), "cmd"), foreign.Copy(filepath.Join(dir, "nearcallshim"), added),
		convertTests(filepath.Join(dir, "connectinprocess")), convertTests(filepath.Join(dir, "connecthttp")))
	if err != nil {
		return err
	}
	_, err = foreign.Command(ctx, dir, "go", edits...)
	return err
}

// replacements are made in the tests.
var replacements = strings.NewReplacer(
	`"`+connectPath+`/connecthttp"`, `"`+connectPath+`/nearcallshim/connecthttp"`,
	`"`+connectPath+`/connectinprocess"`, `"`+connectPath+`/nearcallshim/connectinprocess"`,
	`"`+connectPath+`/internal/memhttp/memhttptest"`, `"`+connectPath+`/nearcallshim/memhttptest"`,
	"connectinprocess.New(", "connectinprocess.NewFor(t, ",
	// The peer's address: in process, and at a client's unix socket, there is none.
	`callInfo.PeerAddr == ""`, "false",
	"assert.Equal(t, callInfo.PeerAddr, httptest.DefaultRemoteAddr)", "_ = httptest.DefaultRemoteAddr",
	"assert.NotZero(tb, info.PeerAddr)", "",
)

// convertTests converts the tests in dir that are from outside of the package, and removes the
// others, and the examples and benchmarks.
func convertTests(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		base := filepath.Base(file)
		if !strings.HasSuffix(base, "_ext_test.go") && base != "connectinprocess_test.go" {
			if err := os.Remove(file); err != nil {
				return err
			}
			continue
		}
		if err := foreign.Write(file, replacements.Replace(string(b))); err != nil {
			return err
		}
	}
	return nil
}
