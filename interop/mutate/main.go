// Command mutate checks that the cases of interop detect faults, and that the tests of
// the protocol's vectors do. It seeds one fault at a time in a copy of the engine. The
// cases of the fault's items must then differ from grpc-go, or its test must fail.
//
//	go run ./mutate             all faults
//	go run ./mutate -run 'EOF'  those whose name matches
//
// The table of faults is in faults.go. mutate does not change the repository; the
// copy includes uncommitted changes.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nearcall/nearcall/interop"
)

func main() {
	only := flag.String("run", "", "faults to seed, as a regular expression of their names")
	verbose := flag.Bool("v", false, "show the output of the cases for each fault")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *only, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, only string, verbose bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	var faults []Fault
	for _, f := range Faults {
		if pattern.MatchString(f.Name) {
			faults = append(faults, f)
		}
	}
	if len(faults) == 0 {
		return fmt.Errorf("no fault's name matches %q", only)
	}
	began := time.Now()
	dir, err := os.MkdirTemp("", "nearcall-mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := snapshot(ctx, dir); err != nil {
		return err
	}
	if err := sound(ctx, dir, faults); err != nil {
		return err
	}
	fmt.Fprintf(out, "without a fault: all green (%.1f s)\n", time.Since(began).Seconds())

	failed := 0
	var rows [][]string
	for _, f := range faults {
		start := time.Now()
		seen, err := seed(ctx, dir, &f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		verdict := "red"
		if err != nil {
			verdict = "NOT RED"
			failed++
		}
		row := []string{verdict, f.Name, f.File, f.env(), seen.String(), fmt.Sprintf("%.1f s", time.Since(start).Seconds())}
		rows = append(rows, row)
		fmt.Fprintln(os.Stderr, strings.Join(row, "  "))
		if err != nil {
			fmt.Fprintf(os.Stderr, "\t%v\n", err)
		}
		if verbose {
			fmt.Fprintln(os.Stderr, seen.output)
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tfault\tfile\tenvironment\titem: red of cases\ttime")
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d faults turn their items red; %.0f s\n", len(faults)-failed, len(faults), time.Since(began).Seconds())
	if failed > 0 {
		return fmt.Errorf("%d faults did not show as they should", failed)
	}
	return nil
}

// isCopied reports whether the cases are built from the file with that name, which
// is relative to the repository's root, or a test of a fault may read it.
func isCopied(name string) bool {
	switch path.Ext(name) {
	case ".go", ".s", ".mod", ".sum":
	case ".json":
		return strings.HasPrefix(name, "internal/") && strings.Contains(name, "/testdata/")
	default:
		return false
	}
	first, _, below := strings.Cut(name, "/")
	return !below || slices.Contains([]string{"internal", "interop", "loop", "forward", "quic"}, first)
}

// snapshot copies the files that the cases and tests need to dir. It copies the
// working tree, not the last commit.
func snapshot(ctx context.Context, dir string) error {
	top, err := command(ctx, ".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(top)
	list, err := command(ctx, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(list, "\x00") {
		if !isCopied(name) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// sound fails unless the items and tests are green without a fault. Otherwise a red one
// would prove nothing.
func sound(ctx context.Context, dir string, faults []Fault) error {
	faults = slices.Clone(faults)
	for _, f := range faults {
		if f.Test == "" {
			continue
		}
		seen, err := test(ctx, dir, &f)
		if err == nil && seen.red {
			err = errors.New("it is red")
		}
		if err != nil {
			return fmt.Errorf("without a fault, %s of %s: %w\n%s", f.Test, f.env(), err, seen.output)
		}
	}
	faults = slices.DeleteFunc(faults, func(f Fault) bool { return f.Test != "" })
	if len(faults) == 0 {
		return nil
	}
	if err := build(ctx, dir); err != nil {
		return fmt.Errorf("without a fault: %w", err)
	}
	var envs []string
	for _, f := range faults {
		if !slices.Contains(envs, f.env()) {
			envs = append(envs, f.env())
		}
	}
	for _, env := range envs {
		var items []int
		for _, f := range faults {
			if f.env() == env {
				items = append(items, f.Items...)
			}
		}
		slices.Sort(items)
		seen, err := cases(ctx, dir, env, slices.Compact(items))
		if err != nil {
			return fmt.Errorf("without a fault, on %s: %w\n%s", env, err, seen.output)
		}
		for _, i := range seen.items {
			if c := seen.count[i]; c.red > 0 || c.all == 0 {
				return fmt.Errorf("without a fault, on %s, %d of %d cases of item %d are red\n%s", env, c.red, c.all, i, seen.output)
			}
		}
	}
	return nil
}

// seed applies f, runs the cases of its items or its test, and reverts f. It returns an
// error if an item or the test stays green.
func seed(ctx context.Context, dir string, f *Fault) (seen result, err error) {
	before, after, err := f.apply(dir)
	if err != nil {
		return result{}, err
	}
	file := filepath.Join(dir, filepath.FromSlash(f.File))
	if err := os.WriteFile(file, []byte(after), 0o666); err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, os.WriteFile(file, []byte(before), 0o666)) }()
	if f.Test != "" {
		if seen, err = test(ctx, dir, f); err == nil && !seen.red {
			err = errors.New("the test stays green")
		}
		return seen, err
	}
	if err := build(ctx, dir); err != nil {
		return result{}, err
	}
	seen, err = cases(ctx, dir, f.env(), f.Items)
	if err != nil {
		return seen, err
	}
	for _, i := range f.Items {
		if seen.count[i].red == 0 {
			err = errors.Join(err, fmt.Errorf("item %d stays green: %s", i, interop.Items[i-1].Title))
		}
	}
	return seen, err
}

const binary = "cases.test"

// build compiles the cases. With -trimpath the binary does not depend on dir, so
// the build cache serves unchanged packages, also in the next run.
func build(ctx context.Context, dir string) error {
	_, err := command(ctx, filepath.Join(dir, "interop"), "go", "test", "-c", "-trimpath", "-o", binary, ".")
	return err
}

// A result counts the red cases of some items, or says whether a test is red.
type result struct {
	items  []int
	count  map[int]tally
	test   string
	red    bool
	output string
}

type tally struct{ red, all int }

func (r result) String() string {
	if r.test != "" {
		return r.test
	}
	var out []string
	for _, i := range r.items {
		out = append(out, fmt.Sprintf("%s: %d of %d", interop.Items[i-1].Name(), r.count[i].red, r.count[i].all))
	}
	return strings.Join(out, ", ")
}

// test runs f's test. It returns an error if the test was not run, for example because the
// package does not compile.
func test(ctx context.Context, dir string, f *Fault) (result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-trimpath", "-v", "-timeout=1m", "-run=^"+strings.ReplaceAll(f.Test, "/", "$/^")+"$", "./"+f.env())
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	r := result{test: f.Test, output: string(out)}
	r.red = strings.Contains(r.output, "--- FAIL: "+f.Test+" ")
	if r.red || strings.Contains(r.output, "--- PASS: "+f.Test+" ") {
		err = nil
	} else {
		err = errors.Join(errors.New("it was not run"), err)
	}
	return r, err
}

// cases runs the cases of items on env. It returns an error if the run did not
// complete, for example because of a crash.
func cases(ctx context.Context, dir, env string, items []int) (result, error) {
	r := result{items: items, count: make(map[int]tally)}
	var names []string
	for _, i := range items {
		names = append(names, interop.Items[i-1].Name())
	}
	cmd := exec.CommandContext(ctx, "./"+binary, "-test.v", "-test.timeout=3m",
		"-test.run=^TestItems$/^"+env+"$/^("+strings.Join(names, "|")+")$")
	cmd.Dir = filepath.Join(dir, "interop")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r.output = out.String()
	for line := range strings.Lines(r.output) {
		if m := verdict.FindStringSubmatch(line); m != nil {
			i, err := strconv.Atoi(m[2])
			if err != nil {
				return r, err
			}
			c := r.count[i]
			c.all++
			if m[1] == "FAIL" {
				c.red++
			}
			r.count[i] = c
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 && ended.MatchString(r.output) {
		err = nil
	}
	return r, err
}

var (
	// verdict matches the line that package testing prints for a case.
	verdict = regexp.MustCompile(`^\s*--- (FAIL|PASS): TestItems/[^/]+/(\d+)†?/`)
	// ended matches the line for the test that contains all cases.
	ended = regexp.MustCompile(`(?m)^--- (FAIL|PASS): TestItems `)
)

// command runs a command and returns its stdout. The error includes its stderr.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaint.String())
	}
	return string(out), err
}
