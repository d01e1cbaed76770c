// Command delays runs tests in a build whose goroutines pause at random, for up to two
// milliseconds, where they take or release a lock, wake others, read or write. Orders of steps
// that are rare come about often then. The pauses are in copies of the sources, which go test
// takes with -overlay; nothing in the tree changes.
//
//	go run ./tools/delays -run TestStreamsOfMixedSizes ./test
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pausing are the packages that get pauses.
var pausing = []string{"internal/mux", "internal/wait", "internal/transport/inproc", "quic"}

// pause is the function that pauses, in a file of package wait.
const pause = `package wait

import (
	"math/rand/v2"
	"runtime"
	"time"
)

func Pause() {
	switch r := rand.Uint32(); {
	case r&7 == 0:
		runtime.Gosched()
	case r&63 == 1:
		time.Sleep(time.Duration(r>>16%100) * time.Microsecond)
	case r&1023 == 2:
		time.Sleep(time.Duration(r>>16%2000) * time.Microsecond)
	}
}
`

func main() {
	root := flag.String("root", ".", "the `folder` of the core module")
	flag.CommandLine.SetOutput(os.Stdout)
	run := flag.String("run", "", "the tests, as go test -run takes them")
	race := flag.Bool("race", false, "with the race detector")
	flag.Parse()
	if err := test(*root, *run, *race, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "delays:", err)
		os.Exit(1)
	}
}

func test(root, run string, race bool, packages []string) error {
	work, err := os.MkdirTemp("", "delays")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	overlay, places, err := overlayOf(root, work)
	if err != nil {
		return err
	}
	fmt.Printf("goroutines pause at %d places\n", places)
	args := []string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout=0", "-v", "-run", run}
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, packages...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// overlayOf writes the sources with pauses to work. It returns the file for -overlay and the number
// of places.
func overlayOf(root, work string) (file string, places int, err error) {
	if root, err = filepath.Abs(root); err != nil {
		return "", 0, err
	}
	replace := make(map[string]string)
	put := func(source, text string) error {
		name := filepath.Join(work, fmt.Sprintf("%d.go", len(replace)))
		replace[source] = name
		return os.WriteFile(name, []byte(text), 0o666)
	}
	if err := put(filepath.Join(root, "internal", "wait", "pause_overlay.go"), pause); err != nil {
		return "", 0, err
	}
	for _, dir := range pausing {
		sources, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
		if err != nil {
			return "", 0, err
		}
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			text, n, err := withPauses(source)
			if err != nil {
				return "", 0, err
			}
			if n == 0 {
				continue
			}
			places += n
			if err := put(source, text); err != nil {
				return "", 0, err
			}
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", 0, err
	}
	file = filepath.Join(work, "overlay.json")
	return file, places, os.WriteFile(file, b, 0o666)
}

// withPauses returns the text of a source with pauses, and their number.
func withPauses(source string) (text string, n int, err error) {
	b, err := os.ReadFile(source)
	if err != nil {
		return "", 0, err
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, source, b, parser.SkipObjectResolution)
	if err != nil {
		return "", 0, err
	}
	call, imported := "pauses.Pause()", "\nimport pauses \"github.com/nearcall/nearcall/internal/wait\"\n"
	if f.Name.Name == "wait" {
		call, imported = "Pause()", ""
	}
	type insertion struct {
		at   int
		text string
	}
	var all []insertion
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	statements := func(list []ast.Stmt) {
		for _, s := range list {
			before, after := pausesAround(s)
			if before {
				all = append(all, insertion{offset(s.Pos()), call + "; "})
			}
			if after {
				all = append(all, insertion{offset(s.End()), "; " + call})
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			statements(n.List)
		case *ast.CaseClause:
			statements(n.Body)
		case *ast.CommClause:
			statements(n.Body)
		}
		return true
	})
	if len(all) == 0 {
		return string(b), 0, nil
	}
	n = len(all)
	all = append(all, insertion{offset(f.Name.End()), imported})
	slices.SortStableFunc(all, func(a, b insertion) int { return b.at - a.at })
	for _, i := range all {
		b = slices.Insert(b, i.at, []byte(i.text)...)
	}
	return string(b), n, nil
}

// pausesAround reports whether a pause comes before s, and after it. There is none where a lock
// is held.
func pausesAround(s ast.Stmt) (before, after bool) {
	switch s := s.(type) {
	case *ast.ExprStmt:
		switch called(s.X) {
		case "Lock", "Park":
			return true, false
		case "Unlock", "run":
			return false, true
		case "Unpark":
			return true, true
		}
	case *ast.AssignStmt:
		if len(s.Rhs) == 1 {
			switch called(s.Rhs[0]) {
			case "Read", "TryRead", "Write", "TryWrite", "WriteTo", "WriteAll":
				return true, true
			}
		}
	}
	return false, false
}

// called returns the name of the method or function that x calls, or "".
func called(x ast.Expr) string {
	c, ok := x.(*ast.CallExpr)
	if !ok {
		return ""
	}
	switch f := c.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}
