package main

import (
	"context"
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed shim testdata/overlay
var added embed.FS

// A source holds the folders that the copy is made from.
type source struct {
	grpc     string // the module's folder in the module cache
	std      string // Go's standard library
	nearcall string // the checkout
}

// convert copies grpc-go to dir, with the shim and the converted tests.
func convert(ctx context.Context, dir string, src source) error {
	if err := copyModule(dir, src.grpc); err != nil {
		return err
	}
	if err := addFiles(dir); err != nil {
		return err
	}
	for _, p := range slices.Concat(helpers, suites) {
		if err := copyPackage(dir, src.grpc, p); err != nil {
			return err
		}
	}
	for _, p := range patches {
		if err := p.apply(dir); err != nil {
			return err
		}
	}
	shims := filepath.Join(dir, below, "shim")
	if err := reexport(src.grpc, "google.golang.org/grpc", filepath.Join(shims, "grpc")); err != nil {
		return err
	}
	if err := reexport(filepath.Join(src.std, "net"), "net", filepath.Join(shims, "net")); err != nil {
		return err
	}
	_, err := command(ctx, dir, "go", "mod", "edit", "-require=github.com/nearcall/nearcall@v0.0.0",
		"-replace=github.com/nearcall/nearcall="+src.nearcall)
	return err
}

// copyModule copies grpc-go, except for files that no test reads.
func copyModule(dir, from string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		switch to := filepath.Join(dir, rel); {
		case d.IsDir() && (rel == "examples" || rel == "Documentation"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(to, 0o777)
		default:
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			return os.WriteFile(to, b, 0o666)
		}
	})
}

// addFiles adds the shim and the overlay.
func addFiles(dir string) error {
	return fs.WalkDir(added, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := added.ReadFile(name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(b), `"github.com/nearcall/nearcall/interop/grpcgo/shim/`, `"`+shim)
		to := strings.TrimPrefix(name, "testdata/overlay/")
		return write(filepath.Join(dir, below, filepath.FromSlash(to)), text)
	})
}

// copyPackage copies the files of p and rewrites their imports.
func copyPackage(dir, grpc string, p pkg) error {
	for _, pattern := range p.files {
		files, err := filepath.Glob(filepath.Join(grpc, filepath.FromSlash(p.from), pattern))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("grpc-go has no %s", path.Join(p.from, pattern))
		}
		for _, file := range files {
			if p.name == "" && strings.HasSuffix(file, "_test.go") || matches(p.units, filepath.Base(file)) {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			rewritten, err := rewrite(text)
			if err != nil {
				return err
			}
			if err := write(filepath.Join(dir, filepath.FromSlash(p.to), filepath.Base(file)), rewritten); err != nil {
				return err
			}
		}
	}
	return nil
}

// hooks matches the functions of grpc-go's package internal that take a *grpc.ClientConn.
var hooks = regexp.MustCompile(`\b(internal\.(?:SubscribeToConnectivityStateChanges|EnterIdleModeForTesting|ExitIdleModeForTesting))\b`)

// rewrite changes the imports of a file, and lets hooks take the stand-in's ClientConn.
func rewrite(text []byte) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, parser.ImportsOnly)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	done := 0
	for _, spec := range file.Imports {
		old, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return "", err
		}
		to, ok := imports[old]
		if !ok {
			continue
		}
		at := files.Position(spec.Path.Pos()).Offset
		out.Write(text[done:at])
		out.WriteString(strconv.Quote(to))
		done = at + len(spec.Path.Value)
	}
	out.Write(text[done:])
	return hooks.ReplaceAllString(out.String(), "grpc.Hook($1)"), nil
}

func (p patch) apply(dir string) error {
	file := filepath.Join(dir, filepath.FromSlash(p.file))
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), p.old); n != 1 {
		return fmt.Errorf("%s has %d times, and not once, what a patch changes (%s):\n%s", p.file, n, p.why, p.old)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), p.old, p.new, 1)), 0o666)
}

func write(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o666)
}

// declared returns the top-level names of the package in dir.
func declared(dir string) (map[string]bool, error) {
	names := make(map[string]bool)
	err := eachFile(dir, func(file *ast.File) {
		for _, d := range file.Decls {
			for _, n := range topNames(d) {
				names[n.name] = true
			}
		}
	})
	return names, err
}
