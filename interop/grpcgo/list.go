package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	"github.com/nearcall/nearcall/interop/internal/foreign"
)

// list returns the tests of a suite to run. The methods of a grpctest suite are subtests of the
// function that calls grpctest.RunSubTests; list returns each of them as a test.
func list(dir string, suite foreign.Suite) (tests []foreign.Test, err error) {
	files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(suite.Dir), "*_test.go"))
	if err != nil {
		return nil, err
	}
	p := &suites[slices.IndexFunc(suites, func(p pkg) bool { return p.name == suite.Name })]
	runners := make(map[string]string) // from a type to the function that runs its methods
	parsed := make([]*ast.File, len(files))
	for i, name := range files {
		if parsed[i], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		for _, f := range functions(parsed[i]) {
			if t := suiteOf(f); t != "" {
				runners[t] = f.Name.Name
			}
		}
	}
	for i, name := range files {
		base := filepath.Base(name)
		if matches(p.units, base) {
			continue
		}
		var kinds []string
		if matches(p.balanced, base) {
			kinds = names(slices.DeleteFunc(slices.Clone(near.Kinds), func(k near.Kind) bool { return !k.Balances() }))
		}
		for _, f := range functions(parsed[i]) {
			if run := pattern(f, runners); run != "" {
				tests = append(tests, foreign.Test{Suite: suite, Name: f.Name.Name, Run: run, Kinds: kinds})
			}
		}
	}
	return tests, nil
}

// functions returns the functions and methods of file that have the name and the parameters
// of a test.
func functions(file *ast.File) (found []*ast.FuncDecl) {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" && f.Type.Params.NumFields() == 1 {
			found = append(found, f)
		}
	}
	return found
}

// pattern returns the pattern for -test.run that matches only f, or "" if f is no test.
func pattern(f *ast.FuncDecl, suites map[string]string) string {
	switch {
	case f.Recv != nil:
		if runner := suites[typeName(f.Recv.List[0].Type)]; runner != "" {
			return "^" + runner + "$/^" + strings.TrimPrefix(f.Name.Name, "Test") + "$"
		}
		return ""
	case suiteOf(f) != "":
		return ""
	}
	return "^" + f.Name.Name + "$"
}

// suiteOf returns the type whose methods f runs as subtests: grpctest.RunSubTests(t, s{}).
func suiteOf(f *ast.FuncDecl) (name string) {
	if f.Recv != nil {
		return ""
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 2 {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "RunSubTests" {
				if lit, ok := call.Args[1].(*ast.CompositeLit); ok {
					name = typeName(lit.Type)
				}
			}
		}
		return true
	})
	return name
}

func typeName(e ast.Expr) string {
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
