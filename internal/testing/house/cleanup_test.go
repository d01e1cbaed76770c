package house

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ends are the methods of testing.TB, and the function of package runtime, that end a goroutine.
var ends = []string{"Fatal", "Fatalf", "FailNow", "Skip", "Skipf", "SkipNow", "Goexit"}

// TestCleanupsHideNoPanic reads the tests of all modules. A deferred function, or one that is given
// to Cleanup, runs while a test panics. If it ends the goroutine, as t.Fatal does, the panic is
// discarded, and nothing says why the test failed. So it reports with t.Error, and returns.
func TestCleanupsHideNoPanic(t *testing.T) {
	const root = "../../.."
	code := newCode()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "node_modules", "testdata"}, d.Name()):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go"):
			dir, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				return err
			}
			return code.read(filepath.ToSlash(dir), name, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wrong, seen := code.hiding()
	for _, at := range wrong {
		t.Errorf("%s: this can end the goroutine and so hide a panic of the test: report with Error", strings.TrimPrefix(at, root+"/"))
	}
	if seen < 500 {
		t.Errorf("%d deferred calls and cleanups were seen: the test sees nothing", seen)
	}
}

func TestHiddenPanicsAreFound(t *testing.T) {
	const head = "package p\n\nimport (\n\t\"testing\"\n\t\"runtime\"\n\t\"log\"\n)\n\nfunc give(t *testing.T) { t.Helper(); t.Fatal(1) }\n\ntype box struct{}\n\nfunc later(t *testing.T) func() { return func() { t.Fatal(1) } }\n\nfunc two(t *testing.T) (a, b func()) { return func() {}, func() { t.Fatal(1) } }\n\nfunc soon(t *testing.T) func() { t.Fatal(1); return func() {} }\n\nfunc (b box) must(t *testing.T) { give(t) }\n\nfunc (b box) fine(t *testing.T) { t.Error(1) }\n\nfunc f(t *testing.T, b box, x bool) {\n"
	for body, hides := range map[string]bool{
		`t.Cleanup(func() { t.Fatal(1) })`:                                   true,
		`t.Cleanup(func() { if x { t.FailNow() } })`:                         true,
		`t.Cleanup(func() { give(t) })`:                                      true,
		`t.Cleanup(func() { b.must(t) })`:                                    true,
		`t.Cleanup(b.must)`:                                                  true,
		`end := func() { t.Skip() }; t.Cleanup(end)`:                         true,
		`t.Cleanup(func() { func() { t.Fatal(1) }() })`:                      true,
		`defer func() { t.Fatalf("") }()`:                                    true,
		`defer give(t)`:                                                      true,
		`t.Cleanup(func() { t.Error(1); b.fine(t) }); give(t)`:               false,
		`defer b.fine(t); t.Fatal(1)`:                                        false,
		`t.Cleanup(func() { go func() { runtime.Goexit() }() })`:             false,
		`defer func() { log.Fatal(1) }()`:                                    false,
		`defer later(t)()`:                                                   true,
		`t.Cleanup(later(t))`:                                                true,
		`_, end := two(t); defer end()`:                                      true,
		`end, _ := two(t); defer end()`:                                      false,
		`defer soon(t)()`:                                                    false,
		`t.Cleanup(func() { t.Run("", func(t *testing.T) { t.Fatal(1) }) })`: false,
	} {
		code := newCode()
		if err := code.read("p", "p_test.go", head+body+"\n}\n"); err != nil {
			t.Fatal(err)
		}
		if wrong, _ := code.hiding(); len(wrong) > 0 != hides {
			t.Errorf("%s: found %q", body, wrong)
		}
	}
}

// code is the source of the packages, by directory and name. Only their imports of one another are
// read for types, so what other modules declare is known by name alone. As packages are checked with
// and without their tests, what they declare is identified by its place.
type code struct {
	fset     *token.FileSet
	packages map[[2]string][]*ast.File
	imported map[string]*types.Package
	info     types.Info
	bodies   map[token.Pos]*ast.BlockStmt
	values   map[token.Pos]value     // what is assigned to variables
	judged   map[*ast.BlockStmt]bool // whether they can end the goroutine
	returned map[*ast.BlockStmt]bool // whose results are looked at
}

// A value is an expression, or one result of it.
type value struct {
	expr   ast.Expr
	result int
}

func newCode() *code {
	return &code{
		fset:     token.NewFileSet(),
		packages: map[[2]string][]*ast.File{},
		imported: map[string]*types.Package{},
		info:     types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}},
		bodies:   map[token.Pos]*ast.BlockStmt{},
		values:   map[token.Pos]value{},
		judged:   map[*ast.BlockStmt]bool{},
		returned: map[*ast.BlockStmt]bool{},
	}
}

// read adds a file of the directory dir, relative to the module's root.
func (c *code) read(dir, file string, src any) error {
	f, err := parser.ParseFile(c.fset, file, src, parser.SkipObjectResolution)
	if err == nil {
		key := [2]string{dir, f.Name.Name}
		c.packages[key] = append(c.packages[key], f)
	}
	return err
}

// Import returns a package that was read, without its tests.
func (c *code) Import(name string) (*types.Package, error) {
	dir, ok := local(name)
	if !ok {
		return nil, errors.New("the package is of another module")
	}
	if p := c.imported[dir]; p != nil {
		return p, nil
	}
	for key, files := range c.packages {
		if key[0] == dir && !strings.HasSuffix(key[1], "_test") {
			c.imported[dir] = c.check(key, slices.DeleteFunc(slices.Clone(files), func(f *ast.File) bool {
				return strings.HasSuffix(c.fset.File(f.FileStart).Name(), "_test.go")
			}))
		}
	}
	return c.imported[dir], nil
}

// check ignores errors, as the types that other modules declare are missing.
func (c *code) check(key [2]string, files []*ast.File) *types.Package {
	conf := types.Config{Importer: c, Error: func(error) {}}
	p, _ := conf.Check(path.Join(Module, key[0]), c.fset, files, &c.info)
	return p
}

// hiding returns where a deferred call or a cleanup can end the goroutine, and how many there are.
func (c *code) hiding() (wrong []string, seen int) {
	for key, files := range c.packages {
		c.check(key, files)
	}
	each(c.packages, func(n ast.Node) {
		if d, ok := n.(*ast.FuncDecl); ok && d.Body != nil {
			c.bodies[d.Name.Pos()] = d.Body
		}
	})
	each(c.packages, func(n ast.Node) {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return
		}
		for i, to := range assign.Lhs {
			if name, ok := to.(*ast.Ident); ok && len(assign.Rhs) == len(assign.Lhs) {
				c.values[c.place(name)] = value{assign.Rhs[i], 0}
			} else if ok {
				c.values[c.place(name)] = value{assign.Rhs[0], i}
			}
		}
	})
	each(c.packages, func(n ast.Node) {
		var later ast.Expr
		switch n := n.(type) {
		case *ast.DeferStmt:
			later = n.Call.Fun
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Cleanup" && len(n.Args) == 1 {
				later = n.Args[0]
			}
		}
		if later == nil {
			return
		}
		if seen++; c.ends(later) {
			wrong = append(wrong, c.fset.Position(n.Pos()).String())
		}
	})
	slices.Sort(wrong)
	return wrong, seen
}

// each calls f with the nodes of all packages.
func each(packages map[[2]string][]*ast.File, f func(ast.Node)) {
	for _, files := range packages {
		for _, file := range files {
			for n := range ast.Preorder(file) {
				f(n)
			}
		}
	}
}

// place returns where the object is declared that name stands for, or 0.
func (c *code) place(name *ast.Ident) token.Pos {
	if o := c.info.Uses[name]; o != nil {
		return o.Pos()
	}
	if o := c.info.Defs[name]; o != nil {
		return o.Pos()
	}
	return token.NoPos
}

// ends reports whether a call of f can end the goroutine.
func (c *code) ends(f ast.Expr) bool {
	switch f := f.(type) {
	case *ast.FuncLit:
		return c.endsIn(f.Body)
	case *ast.Ident:
		at := c.place(f)
		v := c.values[at]
		switch r := v.expr.(type) {
		case *ast.FuncLit:
			return c.endsIn(r.Body)
		case *ast.CallExpr:
			return c.returns(r.Fun, v.result)
		}
		return c.endsIn(c.bodies[at])
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && (x.Name == "log" || x.Name == "grpclog") {
			return false // it ends the process
		}
		if at := c.place(f.Sel); at != token.NoPos {
			return c.endsIn(c.bodies[at])
		}
		return slices.Contains(ends, f.Sel.Name)
	case *ast.CallExpr: // whose result is called
		return c.returns(f.Fun, 0)
	}
	return false
}

// returns reports whether a call of a result of f can end the goroutine.
func (c *code) returns(f ast.Expr, result int) bool {
	var body *ast.BlockStmt
	switch f := f.(type) {
	case *ast.Ident:
		body = c.bodies[c.place(f)]
	case *ast.SelectorExpr:
		body = c.bodies[c.place(f.Sel)]
	}
	if body == nil || c.returned[body] {
		return false
	}
	c.returned[body] = true // for functions that return one another's results
	defer delete(c.returned, body)
	for n := range ast.Preorder(body) {
		if r, ok := n.(*ast.ReturnStmt); ok && result < len(r.Results) && c.ends(r.Results[result]) {
			return true
		}
	}
	return false
}

// endsIn reports whether body can end the goroutine. What it starts in other goroutines and in
// subtests does not count.
func (c *code) endsIn(body *ast.BlockStmt) (found bool) {
	if body == nil {
		return false
	}
	if was, ok := c.judged[body]; ok {
		return was
	}
	c.judged[body] = false // for a function that calls itself
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false
		case *ast.FuncLit:
			found = found || c.endsIn(n.Body)
			return false
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Run" || s.Sel.Name == "Cleanup" || s.Sel.Name == "AfterFunc") {
				return false
			}
			found = found || c.ends(n.Fun)
		}
		return !found
	})
	c.judged[body] = found
	return found
}
