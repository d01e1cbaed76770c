// Command grpcgo runs grpc-go's own tests on nearcall.
//
// It copies grpc-go from the module cache, in the version that go.mod requires, and builds
// the tests of the copy with other imports: package shim/grpc replaces grpc-go's package
// grpc, with servers and clients of nearcall. Each test runs on each kind of path, in its
// own process. Kind grpc is the control: the same tests through the same shim on grpc-go.
// Kind ordinary has clients of grpc-go, and servers of nearcall. In the kinds targets and
// targets-grpc clients of nearcall have the tests' own targets, with resolvers and balancers.
//
//	go run ./grpcgo                                  all tests on all kinds
//	go run ./grpcgo -kinds 'tcp inproc' -packages stats
//	go run ./grpcgo -tests 'test\.Retry.*' -v
//
// Tests that fail must be listed in differences.tsv, with the reason. A failure that is not
// listed fails the run, and so does a listed test that passes. A failure that is not listed
// is retried alone at the end, because some tests are unstable when others run at the same
// time; the report names these tests. Data races, panics and hangs are not retried.
//
// The copy and the logs of the last run stay in a folder of the user's cache. Only one run
// of a checkout at a time is possible.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

const tableFile = "differences.tsv"

//go:embed differences.tsv
var tableText string

type options struct {
	kinds    string // separated by spaces or commas; all if empty
	packages string // names of suites, likewise
	tests    *regexp.Regexp
	race     bool
	procs    int
	tries    int
	limit    time.Duration
	verbose  bool
}

func main() {
	var o options
	flag.StringVar(&o.kinds, "kinds", "", "what to run the tests on; all kinds if empty")
	flag.StringVar(&o.packages, "packages", "", "which packages of tests to run; all if empty")
	only := flag.String("tests", "", "which tests to run, as a regular expression of PACKAGE.TEST")
	flag.BoolVar(&o.race, "race", true, "use the race detector")
	flag.IntVar(&o.procs, "p", runtime.NumCPU(), "how many tests to run at a time")
	flag.IntVar(&o.tries, "tries", 3, "how often a test may fail before it counts")
	flag.DurationVar(&o.limit, "limit", time.Minute, "how long a test may take")
	flag.BoolVar(&o.verbose, "v", false, "print each test as it ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.tests, err = regexp.Compile(*only); err == nil {
		err = run(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpcgo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, o options) error {
	began := time.Now()
	table, err := parseTable(tableText)
	if err != nil {
		return fmt.Errorf("%s: %w", tableFile, err)
	}
	kinds, err := chosenKinds(o.kinds)
	if err != nil {
		return err
	}
	packages, err := chosenPackages(o.packages)
	if err != nil {
		return err
	}
	src, err := sources(ctx)
	if err != nil {
		return err
	}
	dir, err := workspace(src.nearcall)
	if err != nil {
		return err
	}
	r := &runner{dir: filepath.Join(dir, "grpc"), logs: filepath.Join(dir, "logs"), limit: o.limit, tries: o.tries}
	if err := convert(ctx, r.dir, src); err != nil {
		return err
	}
	if r.binaries, err = buildTests(ctx, filepath.Join(dir, "bin"), r.dir, packages, o.race); err != nil {
		return err
	}
	all, err := listAll(r.dir)
	if err != nil {
		return err
	}
	jobs, left := plan(all, kinds, packages, o.tests, table)
	fmt.Fprintf(out, "built after %.0f s: %d tests to run, %d at a time; logs are in %s\n", time.Since(began).Seconds(), len(jobs), o.procs, r.logs)
	rep := report{left: left, stale: unused(table, all)}
	rep.results = r.run(ctx, jobs, o.procs, func(res result) {
		if o.verbose || !res.state.good() && res.line == nil {
			fmt.Fprintf(out, "%s on %s: %s (%.1f s) %s\n", res.id(), res.kind, res.state, res.took.Seconds(), res.note)
		}
	})
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	sortResults(rep.results)
	err = rep.print(out)
	fmt.Fprintf(out, "%.0f s\n", time.Since(began).Seconds())
	return err
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' })
}

func chosenKinds(list string) (kinds []near.Kind, err error) {
	for _, w := range words(list) {
		k := near.Kind(w)
		if !slices.Contains(near.Kinds, k) {
			return nil, fmt.Errorf("there is no kind %q, only %v", w, near.Kinds)
		}
		kinds = append(kinds, k)
	}
	if len(kinds) > 0 {
		return kinds, nil
	}
	for _, k := range near.Kinds {
		if k != near.SharedMem || runtime.GOOS == "linux" {
			kinds = append(kinds, k)
		}
	}
	return kinds, nil
}

func chosenPackages(list string) (packages []string, err error) {
	var known []string
	for _, p := range suites {
		known = append(known, p.name)
	}
	for _, w := range words(list) {
		if !slices.Contains(known, w) {
			return nil, fmt.Errorf("there is no package %q, only %v", w, known)
		}
		packages = append(packages, w)
	}
	if len(packages) > 0 {
		return packages, nil
	}
	return known, nil
}

// plan returns the jobs to run, and for each kind the number of tests that are left out.
func plan(all []test, kinds []near.Kind, packages []string, only *regexp.Regexp, table []line) (jobs []job, left map[near.Kind]int) {
	left = make(map[near.Kind]int)
	for _, k := range kinds {
		for _, t := range all {
			if t.balanced && !k.Balances() || !slices.Contains(packages, t.pkg.name) || !only.MatchString(t.id()) {
				continue
			}
			if l := find(table, t.id(), k); l != nil && l.class == absent {
				left[k]++
			} else {
				jobs = append(jobs, job{t, k, l})
			}
		}
	}
	return jobs, left
}
