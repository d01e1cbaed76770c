package main

import (
	"context"
	"embed"
	"errors"
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

	"github.com/nearcall/nearcall/interop/internal/foreign"
)

//go:embed shim testdata/overlay
var added embed.FS

// convert copies grpc-go to dir, with the shim and the converted tests.
func convert(ctx context.Context, dir string) error {
	grpc, grpcErr := foreign.Module(ctx, "google.golang.org/grpc")
	nearcall, nearcallErr := foreign.Module(ctx, "github.com/nearcall/nearcall")
	root, rootErr := foreign.Command(ctx, ".", "go", "env", "GOROOT")
	if err := errors.Join(grpcErr, nearcallErr, rootErr); err != nil {
		return err
	}
	if err := errors.Join(foreign.Copy(dir, os.DirFS(grpc), "examples", "Documentation"), addFiles(dir)); err != nil {
		return err
	}
	for _, p := range slices.Concat(helpers, suites) {
		if err := copyPackage(dir, grpc, p); err != nil {
			return err
		}
	}
	for _, p := range patches {
		if err := p.apply(dir); err != nil {
			return err
		}
	}
	shims := filepath.Join(dir, below, "shim")
	if err := reexport(grpc, "google.golang.org/grpc", filepath.Join(shims, "grpc")); err != nil {
		return err
	}
	if err := reexport(filepath.Join(root, "src", "net"), "net", filepath.Join(shims, "net")); err != nil {
		return err
	}
	_, err := foreign.Command(ctx, dir, "go", "mod", "edit", "-require=github.com/nearcall/nearcall@v0.0.0",
		"-replace=github.com/nearcall/nearcall="+nearcall)
	return err
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
		return foreign.Write(filepath.Join(dir, below, filepath.FromSlash(to)), text)
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
			if err := foreign.Write(filepath.Join(dir, filepath.FromSlash(p.to), filepath.Base(file)), rewritten); err != nil {
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
	return foreign.Write(file, strings.Replace(string(text), p.old, p.new, 1))
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
