// Package foreign runs the tests of another project on nearcall.
//
// It copies the project from the module cache, in the version that go.mod requires, changes the copy so
// that its tests use nearcall, and builds them. Each test runs on each kind of path, in its own process.
//
// Tests that fail must be listed in a table, with the reason. A failure that is not listed fails the
// run, and so does a listed test that passes. A failure that is not listed is retried alone at the end,
// because some tests are unstable when others run at the same time; the report names these tests. Data
// races, panics and hangs are not retried.
//
// The copy and the logs of the last run stay in a folder of the user's cache. Only one run of a checkout
// at a time is possible.
package foreign

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A Project is another project and its tests.
type Project struct {
	Name   string
	Table  string              // the text of the table
	Kinds  []string            // what tests can run on
	Groups map[string][]string // from a word of the table to several kinds
	Suites []Suite

	// Convert makes the copy in the folder dir.
	Convert func(ctx context.Context, dir string) error

	// List returns the tests of a suite.
	List func(dir string, s Suite) ([]Test, error)

	// Marker, if it is not empty, is what a test prints if it uses nearcall. Others count as skipped.
	Marker string
}

// A Suite is a package of tests. The last element of its folder is unique.
type Suite struct{ Name, Dir string }

// A Test is a test of a suite.
type Test struct {
	Suite Suite
	Name  string   // of the function or method
	Run   string   // the pattern for -test.run
	Kinds []string // what it can run on; nil for all kinds
}

// id returns the name of t in the table and in reports.
func (t Test) id() string { return t.Suite.Name + "." + strings.TrimPrefix(t.Name, "Test") }

// KindVariable is the environment variable that tells a test what it runs on.
const KindVariable = "NEARCALL_TESTS_ON"

type options struct {
	kinds, suites []string
	tests         *regexp.Regexp
	race, verbose bool
}

// Main runs the tests that the command line selects, and exits.
func (p *Project) Main() {
	var o options
	kinds := flag.String("kinds", "", "what to run the tests on; all kinds if empty")
	packages := flag.String("packages", "", "which packages of tests to run; all if empty")
	only := flag.String("tests", "", "which tests to run, as a regular expression of PACKAGE.TEST, without Test")
	flag.BoolVar(&o.race, "race", true, "use the race detector")
	flag.BoolVar(&o.verbose, "v", false, "print each test as it ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var names []string
	for _, s := range p.Suites {
		names = append(names, s.Name)
	}
	var errs [3]error
	o.kinds, errs[0] = chosen(*kinds, p.Kinds)
	o.suites, errs[1] = chosen(*packages, names)
	o.tests, errs[2] = regexp.Compile(*only)
	err := errors.Join(errs[:]...)
	if err == nil {
		err = p.run(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, p.Name+":", err)
		os.Exit(1)
	}
}

// chosen returns the words of list, which are separated by spaces or commas, or all if list is empty.
func chosen(list string, all []string) ([]string, error) {
	words := strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' })
	for _, w := range words {
		if !slices.Contains(all, w) {
			return nil, fmt.Errorf("there is no %q, only %v", w, all)
		}
	}
	if len(words) == 0 {
		return all, nil
	}
	return words, nil
}

func (p *Project) run(ctx context.Context, out io.Writer, o options) error {
	began := time.Now()
	table, err := p.parseTable()
	if err != nil {
		return fmt.Errorf("the table: %w", err)
	}
	dir, err := workspace(p.Name)
	if err != nil {
		return err
	}
	r := &runner{dir: filepath.Join(dir, "copy"), bin: filepath.Join(dir, "bin"), logs: filepath.Join(dir, "logs"), marker: p.Marker, limit: time.Minute}
	if err := p.Convert(ctx, r.dir); err != nil {
		return err
	}
	if err := r.build(ctx, p.Suites, o); err != nil {
		return err
	}
	all, err := p.ListAll(r.dir)
	if err != nil {
		return err
	}
	rep := report{kinds: p.Kinds, left: make(map[string]int), stale: table.unused(all, p.Kinds)}
	jobs := plan(all, o, table, rep.left)
	fmt.Fprintf(out, "built after %.0f s: %d tests to run; logs are in %s\n", time.Since(began).Seconds(), len(jobs), r.logs)
	rep.results = r.run(ctx, jobs, runtime.NumCPU(), func(res result) {
		if o.verbose || !res.state.good() && res.line == nil {
			fmt.Fprintf(out, "%s on %s: %s (%.1f s) %s\n", res.id(), res.kind, res.state, res.took.Seconds(), res.note)
		}
	})
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	err = rep.print(out)
	fmt.Fprintf(out, "%.0f s\n", time.Since(began).Seconds())
	return err
}

// ListAll returns the tests of all suites in the copy.
func (p *Project) ListAll(dir string) (all []Test, err error) {
	for _, s := range p.Suites {
		tests, err := p.List(dir, s)
		if err != nil {
			return nil, err
		}
		if len(tests) == 0 {
			return nil, fmt.Errorf("package %s has no tests", s.Name)
		}
		all = append(all, tests...)
	}
	return all, nil
}

// plan returns the jobs to run. It counts in left the tests of class absent, by kind.
func plan(all []Test, o options, table table, left map[string]int) (jobs []job) {
	for _, k := range o.kinds {
		for _, t := range all {
			if t.Kinds != nil && !slices.Contains(t.Kinds, k) || !slices.Contains(o.suites, t.Suite.Name) || !o.tests.MatchString(t.id()) {
				continue
			}
			if l := table.find(t.id(), k); l != nil && l.class == absent {
				left[k]++
			} else {
				jobs = append(jobs, job{t, k, l})
			}
		}
	}
	return jobs
}

// workspace returns an empty folder. A checkout always gets the same folder, so that runs share the
// build cache.
func workspace(name string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	h := fnv.New32()
	_, _ = io.WriteString(h, here)
	dir := filepath.Join(cache, "nearcall", fmt.Sprintf("%s-%08x", name, h.Sum32()))
	return dir, errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "logs"), 0o777), os.MkdirAll(filepath.Join(dir, "bin"), 0o777))
}

// build builds the test binaries of the chosen suites, without debug information.
func (r *runner) build(ctx context.Context, suites []Suite, o options) error {
	args := []string{"test", "-c", "-vet=off", "-mod=mod", "-ldflags=-s -w", "-race=" + fmt.Sprint(o.race), "-o", r.bin + string(filepath.Separator)}
	for _, s := range suites {
		if slices.Contains(o.suites, s.Name) {
			args = append(args, "./"+s.Dir)
		}
	}
	_, err := Command(ctx, r.dir, "go", args...)
	return err
}

func (r *runner) binary(s Suite) string { return filepath.Join(r.bin, path.Base(s.Dir)+".test") }

// Module returns the folder of a module that go.mod requires. It downloads the module if necessary.
func Module(ctx context.Context, module string) (string, error) {
	if _, err := Command(ctx, ".", "go", "mod", "download", module); err != nil {
		return "", err
	}
	return Command(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", module)
}

// Copy copies files to dir, except for folders that skip names.
func Copy(dir string, files fs.FS, skip ...string) error {
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && slices.Contains(skip, name) {
				return fs.SkipDir
			}
			return err
		}
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return Write(filepath.Join(dir, filepath.FromSlash(name)), string(b))
	})
}

// Write writes a file, and makes its folder.
func Write(file, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666))
}

// Command runs a command and returns its stdout without surrounding space. The error
// includes its stderr.
func Command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, complaint.String())
	}
	return strings.TrimSpace(string(out)), nil
}
