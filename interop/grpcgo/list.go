package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// A test is a test of grpc-go.
type test struct {
	pkg      *pkg
	name     string // of the function or method
	run      string // the pattern for -test.run
	balanced bool   // it needs a target with a resolver and a balancer
}

// id returns the name of t in the table and in reports.
func (t test) id() string { return t.pkg.name + "." + strings.TrimPrefix(t.name, "Test") }

// listAll returns the tests of all suites in the copy.
func listAll(dir string) (all []test, err error) {
	for i := range suites {
		tests, err := list(dir, &suites[i])
		if err != nil {
			return nil, err
		}
		all = append(all, tests...)
	}
	return all, nil
}

// list returns the tests of p to run. The methods of a grpctest suite are subtests of the
// function that calls grpctest.RunSubTests; list returns each of them as a test.
func list(dir string, p *pkg) ([]test, error) {
	files, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(p.to), "*_test.go"))
	if err != nil {
		return nil, err
	}
	suites := make(map[string]string) // from a type to the function that runs its methods
	var tests []test
	parsed := make(map[string]*ast.File)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, f := range functions(file) {
			if t := suiteOf(f); t != "" {
				suites[t] = f.Name.Name
			}
		}
		if base := filepath.Base(name); !matches(p.units, base) {
			parsed[base] = file
		}
	}
	for _, base := range slices.Sorted(maps.Keys(parsed)) {
		for _, f := range functions(parsed[base]) {
			if run := pattern(f, suites); run != "" {
				tests = append(tests, test{p, f.Name.Name, run, matches(p.balanced, base)})
			}
		}
	}
	if len(tests) == 0 {
		return nil, fmt.Errorf("package %s has no tests", p.name)
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
