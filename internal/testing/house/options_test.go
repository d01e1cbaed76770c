package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostFiles is in how many files the field of an option may occur: those that declare it, set it
// and read it.
const mostFiles = 4

// TestAnOptionIsInFewFiles counts the files of the product with the name of a field of package
// options. If there are more than mostFiles, a value is passed on instead of read where it is, or
// the name has another meaning elsewhere.
func TestAnOptionIsInFewFiles(t *testing.T) {
	const root = "../../.."
	in := make(map[string][]string) // the files with a field's name
	for _, name := range fieldsOf(t, root+"/internal/options") {
		in[name] = nil
	}
	word := regexp.MustCompile(`\b[A-Z]\w*\b`)
	notProduct := []string{".git", "bench", "examples", "interop", "test", "testing", "tools", "testdata", "testserver", "docs"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(notProduct, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		seen := make(map[string]bool)
		for _, name := range word.FindAllString(string(content), -1) {
			if files, ok := in[name]; ok && !seen[name] {
				seen[name], in[name] = true, append(files, strings.TrimPrefix(path, root+"/"))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		files := in[name]
		t.Logf("%d %s: %s", len(files), name, strings.Join(files, " "))
		if len(files) > mostFiles {
			t.Errorf("%s is in %d files: %s", name, len(files), strings.Join(files, ", "))
		}
	}
}

// fieldsOf returns the exported fields of the structs with options, in the package in dir.
func fieldsOf(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !slices.Contains([]string{"Connections", "Server", "Client"}, spec.Name.Name) {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				for _, name := range field.Names {
					if name.IsExported() {
						names = append(names, name.Name)
					}
				}
			}
			return false
		})
	}
	return names
}
