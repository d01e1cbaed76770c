package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearcall/nearcall/interop/internal/foreign"
)

// reexport completes the package in folder to. For each name that the package in folder
// from exports and the package in folder to does not declare, it adds an alias, in a
// generated file. path is the import path of from.
func reexport(from, path, to string) error {
	own, err := declared(to)
	if err != nil {
		return err
	}
	var lines []string
	err = eachFile(from, func(file *ast.File) {
		for _, d := range file.Decls {
			for _, n := range topNames(d) {
				if ast.IsExported(n.name) && !own[n.name] {
					own[n.name] = true
					lines = append(lines, n.alias())
				}
			}
		}
	})
	if err != nil {
		return err
	}
	slices.Sort(lines)
	text := fmt.Sprintf("package %s\n\nimport from %q\n\n%s", filepath.Base(to), path, strings.Join(lines, "\n"))
	formatted, err := format.Source([]byte(text))
	if err != nil {
		return err
	}
	return foreign.Write(filepath.Join(to, "reexported.go"), string(formatted))
}

// eachFile calls f for each file of the package in dir that is built on this system.
func eachFile(dir string, f func(*ast.File)) error {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return err
	}
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f(file)
	}
	return nil
}

// A topName is a top-level name of a package.
type topName struct {
	name   string
	tok    token.Token // FUNC, TYPE, VAR or CONST
	params *ast.FieldList
}

// topNames returns the names that d declares, except for functions with type parameters,
// which cannot have an alias.
func topNames(d ast.Decl) (names []topName) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Type.TypeParams == nil {
			names = append(names, topName{name: d.Name.Name, tok: token.FUNC})
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, topName{s.Name.Name, token.TYPE, s.TypeParams})
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, topName{name: n.Name, tok: d.Tok})
				}
			}
		}
	}
	return names
}

// alias returns a declaration of n as an alias for the name in the package that is imported
// as from.
func (n topName) alias() string {
	switch {
	case n.tok == token.FUNC:
		return fmt.Sprintf("var %s = from.%[1]s", n.name)
	case n.params == nil:
		return fmt.Sprintf("%s %s = from.%[2]s", n.tok, n.name)
	}
	var declared, used []string
	for _, p := range n.params.List {
		var bound bytes.Buffer
		_ = printer.Fprint(&bound, token.NewFileSet(), p.Type) // to memory
		for _, name := range p.Names {
			declared = append(declared, name.Name+" "+bound.String())
			used = append(used, name.Name)
		}
	}
	return fmt.Sprintf("type %s[%s] = from.%[1]s[%[3]s]", n.name, strings.Join(declared, ", "), strings.Join(used, ", "))
}
