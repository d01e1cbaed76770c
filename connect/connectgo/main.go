// Command connectgo runs the tests of Connect v2's own transports on nearcall.
//
// It copies Connect from the module cache, in the version that go.mod requires, and builds the
// tests of connectinprocess and those of connecthttp from outside (*_ext_test.go) with other
// imports: the packages in testdata/shim make transports of package nearconnect. Each test runs on
// each kind of path, in its own process. A client of a test that it has not got from the test's
// server, and a server behind other handlers, stay Connect's. A test that makes no call with
// nearcall is only counted. Tests in bubbles of package synctest run in process alone, because a
// goroutine that waits for a socket holds up a bubble.
//
//	go run ./connectgo
//	go run ./connectgo -kinds 'inproc tcp' -tests 'connecthttp\.TestServer' -v
//
// Tests that fail must be listed in differences.tsv, with the reason. A failure that is not listed
// fails the run, and so does a listed test that passes. The copy is in a folder of the user's
// cache.
package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed testdata/shim
var shims embed.FS

//go:embed differences.tsv
var table string

var (
	packages = []string{"connectinprocess", "connecthttp"}
	allKinds = []string{"inproc", "shm", "unix", "tcp", "ws", "quic"}
)

const connectPath = "connectrpc.com/connect/v2"

func main() {
	kinds := flag.String("kinds", strings.Join(allKinds, " "), "what to run the tests on")
	only := flag.String("tests", "", "which tests to run, as a regular expression of PACKAGE.TEST")
	race := flag.Bool("race", false, "use the race detector")
	verbose := flag.Bool("v", false, "print what tests print that fail")
	flag.Parse()
	r := runner{verbose: *verbose}
	var err error
	if r.tests, err = regexp.Compile(*only); err == nil {
		err = r.run(context.Background(), strings.Fields(*kinds), *race)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "connectgo:", err)
		os.Exit(1)
	}
}

type runner struct {
	tests   *regexp.Regexp
	verbose bool
}

func (r *runner) run(ctx context.Context, kinds []string, race bool) error {
	differences, err := parse(table)
	if err != nil {
		return err
	}
	dir, err := convert(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	for _, pkg := range packages {
		binary := filepath.Join(dir, pkg+".test")
		args := []string{"test", "-vet=off", "-c", "-o", binary}
		if race {
			args = append(args, "-race")
		}
		if _, err := command(ctx, dir, nil, "go", append(args, "./"+pkg)...); err != nil {
			return err
		}
		names, err := command(ctx, filepath.Join(dir, pkg), nil, binary, "-test.list", "^Test")
		if err != nil {
			return err
		}
		bubbles, err := inBubbles(filepath.Join(dir, pkg))
		if err != nil {
			return err
		}
		for _, kind := range kinds {
			tests := strings.Fields(names)
			if kind != "inproc" {
				tests = slices.DeleteFunc(tests, func(t string) bool { return bubbles[t] })
			}
			wrong = append(wrong, r.runKind(ctx, dir, pkg, kind, tests, differences)...)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("these differ from %s:\n%s", "differences.tsv", strings.Join(wrong, "\n"))
	}
	return nil
}

// inBubbles returns the tests in dir that use package synctest.
func inBubbles(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	tests := map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				ast.Inspect(fn, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok && id.Name == "synctest" {
						tests[fn.Name.Name] = true
					}
					return true
				})
			}
		}
	}
	return tests, nil
}

// runKind runs the tests of a package on a kind of path, prints how many passed, and returns what
// is not as the table says.
func (r *runner) runKind(ctx context.Context, dir, pkg, kind string, names []string, differences []*difference) (wrong []string) {
	var mu sync.Mutex
	var passed, listed, http int
	var all sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, name := range names {
		if !r.selects(pkg + "." + name) {
			continue
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out, results := runTest(ctx, dir, pkg, kind, name)
			mu.Lock()
			defer mu.Unlock()
			if !strings.Contains(out, "NEARCALL\n") {
				http++
				return
			}
			failed := false
			for _, sub := range slices.Sorted(maps.Keys(results)) {
				full := pkg + "." + sub
				d := lookup(differences, full, kind)
				switch ok := results[sub]; {
				case !ok && d != nil:
					listed++
					d.failed = true
				case !ok:
					wrong = append(wrong, kind+"\t"+full+"\tfails")
					failed = true
				default:
					passed++
				}
			}
			if failed && r.verbose {
				fmt.Println(out)
			}
		})
	}
	all.Wait()
	for _, d := range differences {
		if d.is(pkg, kind) && r.selects(d.test) && !d.failed && !d.sometimes {
			wrong = append(wrong, kind+"\t"+d.test+"\tpasses, and is listed")
		}
		d.failed = false
	}
	fmt.Printf("%s on %s: %d tests and subtests pass, %d fail as listed; %d tests make no call with nearcall\n", pkg, kind, passed, listed, http)
	slices.Sort(wrong)
	return wrong
}

// selects reports whether the user has selected a test.
func (r *runner) selects(test string) bool {
	whole, _, _ := strings.Cut(test, "/")
	return r.tests.MatchString(whole)
}

var result = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL): (\S+)`)

// runTest runs a test, and returns what it prints and which of it and its subtests have passed. A
// test with subtests counts through these, unless it fails without them.
func runTest(ctx context.Context, dir, pkg, kind, name string) (out string, passed map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := command(ctx, filepath.Join(dir, pkg), []string{"NEARCALL_KIND=" + kind},
		filepath.Join(dir, pkg+".test"), "-test.v", "-test.timeout=50s", "-test.run", "^"+name+"$")
	passed = map[string]bool{}
	for _, m := range result.FindAllStringSubmatch(out, -1) {
		passed[m[2]] = m[1] == "PASS"
	}
	for sub, ok := range passed {
		for parent := path.Dir(sub); parent != "."; parent = path.Dir(parent) {
			if known, is := passed[parent]; is && (known || !ok) {
				delete(passed, parent)
			}
		}
	}
	if len(passed) == 0 || err != nil && !strings.Contains(out, "--- FAIL") {
		passed[name] = false // it did not end, or the process did
	}
	return out, passed
}

// A difference says which tests fail, and why. test is PACKAGE.TEST, and stands for its subtests as
// well.
type difference struct {
	test      string
	kinds     []string // all if empty
	sometimes bool     // it may pass
	failed    bool     // it has failed on the kind that is being run
}

// is reports whether d is about a test of pkg on kind.
func (d *difference) is(pkg, kind string) bool {
	return strings.HasPrefix(d.test, pkg+".") && (d.kinds == nil || slices.Contains(d.kinds, kind))
}

// parse parses the table: lines of test, kinds and reason, with tabs between. Lines that begin with
// # are comments.
func parse(table string) ([]*difference, error) {
	var all []*difference
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 3 || fields[2] == "" {
			return nil, fmt.Errorf("the table has no test, kinds and reason in %q", line)
		}
		d := &difference{test: fields[0], sometimes: strings.HasPrefix(fields[2], "sometimes")}
		if fields[1] != "*" {
			d.kinds = strings.Fields(fields[1])
		}
		all = append(all, d)
	}
	return all, nil
}

// lookup returns the difference of a test or of a test that has it as a subtest, or nil.
func lookup(all []*difference, test, kind string) *difference {
	for _, d := range all {
		if pkg, _, _ := strings.Cut(test, "."); (d.test == test || strings.HasPrefix(test, d.test+"/")) && d.is(pkg, kind) {
			return d
		}
	}
	return nil
}

// convert copies Connect to a folder, with the shims and converted tests, and returns the folder.
func convert(ctx context.Context) (string, error) {
	from, err := command(ctx, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", connectPath)
	if err != nil {
		return "", err
	}
	from = strings.TrimSpace(from)
	here, err := command(ctx, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	here = strings.TrimSpace(here)
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nearcall", "connectgo")
	if err := errors.Join(os.RemoveAll(dir), copyTree(dir, os.DirFS(from)), addShims(dir)); err != nil {
		return "", err
	}
	for _, pkg := range packages {
		if err := convertTests(filepath.Join(dir, pkg)); err != nil {
			return "", err
		}
	}
	const nearcall = "github.com/nearcall/nearcall"
	for _, args := range [][]string{
		{"mod", "edit", "-require=" + nearcall + "@v0.0.0", "-replace=" + nearcall + "=" + filepath.Dir(here),
			"-require=" + nearcall + "/connect@v0.0.0", "-replace=" + nearcall + "/connect=" + here,
			"-require=" + nearcall + "/quic@v0.0.0", "-replace=" + nearcall + "/quic=" + filepath.Join(here, "..", "quic")},
		{"mod", "tidy"},
	} {
		if _, err := command(ctx, dir, nil, "go", args...); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func copyTree(dir string, from fs.FS) error {
	return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		switch to := filepath.Join(dir, name); {
		case err != nil:
			return err
		case d.IsDir() && name == "cmd":
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(to, 0o777)
		default:
			b, err := fs.ReadFile(from, name)
			if err != nil {
				return err
			}
			return os.WriteFile(to, b, 0o666)
		}
	})
}

func addShims(dir string) error {
	sub, err := fs.Sub(shims, "testdata/shim")
	if err != nil {
		return err
	}
	return copyTree(filepath.Join(dir, "nearcallshim"), sub)
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
		if err := os.WriteFile(file, []byte(replacements.Replace(string(b))), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// command runs a program and returns what it prints.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var out, errs bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		_, _ = io.Copy(&out, &errs)
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}
