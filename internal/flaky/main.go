// Command flaky looks for tests that fail now and then. It builds the test
// binary of each package once and runs all of them round after round, each in a
// process of its own: first with nothing beside them, then beside processes that
// keep the processors busy.
//
//	go run ./internal/flaky              the core module, 50 rounds of each kind
//	go run ./internal/flaky -n 5 . loop  two packages
//
// What a failed run printed stays in a file that the report names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rounds  int
	busy    int
	race    bool
	only    string // tests to run, as a regular expression; all if empty
	module  string // the directory that packages are listed in
	timeout time.Duration
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "-spin" {
		spin()
	}
	var o options
	flag.IntVar(&o.rounds, "n", 50, "how often to run each package's tests, alone and again beside the busy processes")
	flag.IntVar(&o.busy, "busy", 2, "how many busy processes to run the second half beside; 0 leaves that half out")
	flag.BoolVar(&o.race, "race", true, "use the race detector")
	flag.StringVar(&o.only, "run", "", "tests to run, as a regular expression")
	flag.StringVar(&o.module, "C", ".", "the module's directory")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for one run of a package's tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

// run runs the tests of the packages that match patterns, and reports. Its error
// says that some failed.
func run(ctx context.Context, out io.Writer, o options, patterns []string) error {
	dir, err := os.MkdirTemp("", "nearcall-flaky-")
	if err != nil {
		return err
	}
	bins, err := build(ctx, dir, o, patterns)
	if err != nil {
		return err
	}
	begun := time.Now()
	failures := rounds(ctx, out, dir, o, 0, bins)
	if o.busy > 0 {
		failures = append(failures, rounds(ctx, out, dir, o, o.busy, bins)...)
	}
	for _, b := range bins {
		_ = os.Remove(b.path)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted; what failed is in %s", dir)
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d runs failed; what they printed is in %s", len(failures), dir)
	}
	fmt.Fprintf(out, "no test failed: %d packages, %d rounds, %.0f s\n", len(bins), o.rounds, time.Since(begun).Seconds())
	return os.RemoveAll(dir)
}

// A binary is the built tests of a package.
type binary struct {
	pkg  string
	dir  string // that its tests run in
	path string
}

// build builds the tests of the packages that have any.
func build(ctx context.Context, dir string, o options, patterns []string) ([]binary, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	for i, p := range patterns {
		if !strings.HasPrefix(p, ".") {
			patterns[i] = "./" + p
		}
	}
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"
	list, err := command(ctx, o.module, "go", slices.Concat([]string{"list", "-f", format}, patterns)...)
	if err != nil {
		return nil, err
	}
	var bins []binary
	for line := range strings.Lines(list) {
		pkg, at, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		b := binary{pkg: pkg, dir: at, path: filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-")+".test")}
		args := []string{"test", "-c", "-o", b.path}
		if o.race {
			args = append(args, "-race")
		}
		if _, err := command(ctx, o.module, "go", append(args, pkg)...); err != nil {
			return nil, err
		}
		bins = append(bins, b)
	}
	if len(bins) == 0 {
		return nil, errors.New("no package there has tests")
	}
	return bins, nil
}

func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(out), nil
}

// rounds runs all tests o.rounds times beside busy busy processes. It returns
// the logs of the runs that failed.
func rounds(ctx context.Context, out io.Writer, dir string, o options, busy int, bins []binary) (failures []string) {
	stop, err := keepBusy(ctx, busy)
	if err != nil {
		fmt.Fprintln(out, err)
		return []string{err.Error()}
	}
	defer stop()
	beside := "alone"
	if busy > 0 {
		beside = fmt.Sprintf("beside %d busy processes", busy)
	}
	for n := range o.rounds {
		begun := time.Now()
		failed := 0
		for _, b := range bins {
			log, err := b.run(ctx, o)
			if ctx.Err() != nil {
				return failures
			}
			if err == nil {
				continue
			}
			failed++
			name := filepath.Join(dir, fmt.Sprintf("%s-%d-busy-%d.log", filepath.Base(b.path), busy, n+1))
			if err := os.WriteFile(name, log, 0o666); err != nil {
				fmt.Fprintln(out, err)
			}
			failures = append(failures, name)
			fmt.Fprintf(out, "FAILED %s, %s, round %d: %s: %s\n\t%s\n", b.pkg, beside, n+1, err, tests(log), name)
		}
		fmt.Fprintf(out, "%s: round %d of %d, %d failed, %.0f s\n", beside, n+1, o.rounds, failed, time.Since(begun).Seconds())
	}
	return failures
}

// run runs the tests once. Its error says that they failed.
func (b *binary) run(ctx context.Context, o options) (log []byte, err error) {
	args := []string{"-test.timeout", o.timeout.String()}
	if o.only != "" {
		args = append(args, "-test.run", o.only)
	}
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Dir = b.dir
	return cmd.CombinedOutput()
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// tests names the tests that a log says have failed.
func tests(log []byte) string {
	var names []string
	for _, m := range failedTest.FindAllSubmatch(log, -1) {
		names = append(names, string(m[1]))
	}
	if names == nil {
		return "no test is named"
	}
	return strings.Join(names, ", ")
}

// keepBusy starts n processes that each use one processor until stop is called.
func keepBusy(ctx context.Context, n int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	stop = func() {
		cancel()
		for _, cmd := range running {
			_ = cmd.Wait()
		}
	}
	self, err := os.Executable()
	if err != nil {
		return stop, err
	}
	for range n {
		cmd := exec.CommandContext(ctx, self, "-spin")
		if err := cmd.Start(); err != nil {
			stop()
			return func() {}, err
		}
		running = append(running, cmd)
	}
	return stop, nil
}

// spin uses one processor until the process is killed, or its parent has gone.
func spin() {
	parent := os.Getppid()
	for os.Getppid() == parent {
		for range 1 << 24 {
		}
	}
	os.Exit(0)
}
