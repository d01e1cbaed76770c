// Command flaky looks for tests that fail now and then. It builds the test binaries of all
// packages and runs them many times, each in its own process: first with no other work on
// the machine, then beside processes that keep the processors busy.
//
//	go run ./tools/flaky              the core module, 50 rounds of each kind, within an hour
//	go run ./tools/flaky -n 5 . loop  two packages
//
// A round of a package is one run of its tests. Half of the rounds use the race detector;
// the others are several times as fast, and so see other orders of events.
//
// All rounds use -short. It leaves out what is the same in each round: every interleaving
// of a ring, the building of goimports, series of child processes, a keepalive that takes
// seconds. Soaks run for a fraction of their time, tests that repeat something repeat it
// less, floods make 10,000 calls, and the tournament's rivals make calls of each kind but
// not of each size. -short=false runs everything.
//
// As many packages run at a time as there are processors, so no test has the machine to
// itself. The package that has used the least time is next. When the budget is spent, or
// each package has had its rounds, the report says how many rounds each package had. The
// output of a failed run stays in a file that the report names.
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
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	rounds  int
	budget  time.Duration
	busy    int
	jobs    int
	race    bool
	short   bool
	only    string   // tests to run, as a regular expression; all if empty
	modules []string // the directories that packages are listed in
	timeout time.Duration
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "-spin" {
		spin()
	}
	var o options
	flag.IntVar(&o.rounds, "n", 50, "how often to run each package's tests, alone and again beside the busy processes")
	flag.DurationVar(&o.budget, "budget", time.Hour, "stop after so long, the building aside; each package has a round of each kind at least")
	flag.IntVar(&o.busy, "busy", 2, "how many busy processes to run the second half beside; 0 leaves that half out")
	flag.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "how many packages' tests run at a time")
	flag.BoolVar(&o.race, "race", true, "use the race detector in every other round")
	flag.BoolVar(&o.short, "short", true, "leave out tests that are repetition themselves")
	flag.StringVar(&o.only, "run", "", "tests to run, as a regular expression")
	modules := flag.String("C", ".", "the modules' directories, separated by spaces")
	flag.DurationVar(&o.timeout, "timeout", 30*time.Minute, "for one run of a package's tests")
	flag.Parse()
	o.modules = strings.Fields(*modules)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

// run runs the tests of the packages that match patterns, and prints a report. It fails if
// a test failed.
func run(ctx context.Context, out io.Writer, o options, patterns []string) error {
	dir, err := os.MkdirTemp("", "nearcall-flaky-")
	if err != nil {
		return err
	}
	var bins []*binary
	for _, module := range o.modules {
		more, err := build(ctx, dir, module, o, patterns)
		if err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		bins = append(bins, more...)
	}
	if len(bins) == 0 {
		return errors.New("no package there has tests")
	}
	halves := []int{0}
	if o.busy > 0 {
		halves = append(halves, o.busy)
	}
	failures := 0
	for _, busy := range halves {
		h := &half{options: o, busy: busy, dir: dir, out: out, left: bins}
		if err := h.run(ctx, o.budget/time.Duration(len(halves))); err != nil {
			return err
		}
		h.report(bins)
		failures += h.failures
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted; what failed is in %s", dir)
		}
	}
	for _, b := range bins {
		_ = os.Remove(b.plain)
		_ = os.Remove(b.raced)
	}
	if failures > 0 {
		return fmt.Errorf("%d runs failed; what they printed is in %s", failures, dir)
	}
	fmt.Fprintln(out, "no test failed")
	return os.RemoveAll(dir)
}

// A binary is the built test binary of a package.
type binary struct {
	pkg          string
	dir          string // the working directory of its tests
	plain, raced string // paths, without and with the race detector; empty if not used
}

// path returns the binary for round n.
func (b *binary) path(n int) string {
	if b.raced != "" && n%2 == 0 {
		return b.raced
	}
	return b.plain
}

// build builds the tests of the module's packages that have tests.
func build(ctx context.Context, dir, module string, o options, patterns []string) ([]*binary, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	var dirs []string
	for _, p := range patterns {
		if !strings.HasPrefix(p, ".") {
			p = "./" + p
		}
		dirs = append(dirs, p)
	}
	const format = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"
	list, err := command(ctx, module, "go", slices.Concat([]string{"list", "-f", format}, dirs)...)
	if err != nil {
		return nil, err
	}
	var bins []*binary
	for line := range strings.Lines(list) {
		pkg, at, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		path := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "-"))
		b := &binary{pkg: pkg, dir: at, plain: path + ".test"}
		if _, err := command(ctx, module, "go", "test", "-vet=off", "-c", "-o", b.plain, pkg); err != nil {
			return nil, err
		}
		if o.race {
			b.raced = path + "-race.test"
			if _, err := command(ctx, module, "go", "test", "-vet=off", "-race", "-c", "-o", b.raced, pkg); err != nil {
				return nil, err
			}
		}
		bins = append(bins, b)
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

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// tests returns the names of the tests that failed according to a log.
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
