package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// A result is the outcome of the tests.
type result struct {
	passed  int      // tests, with subtests
	failed  []string // tests and packages
	skipped []string // with the reason, if one was given
	said    map[string][]string
}

// A module is some of a module's packages, as patterns.
type module struct {
	dir      string
	patterns []string
}

// byModule returns the modules of patterns. A pattern is in the module of dir, or it begins with
// the folder of another module, as ./cmd/nearcall/... does.
func byModule(dir string, patterns []string) (all []module) {
	for _, pattern := range patterns {
		m := module{dir, []string{pattern}}
		folder, below := strings.CutSuffix(pattern, "/...")
		inner := filepath.Join(dir, folder)
		if _, err := os.Stat(filepath.Join(inner, "go.mod")); err == nil && inner != filepath.Clean(dir) {
			m = module{inner, []string{"."}}
			if below {
				m.patterns[0] = "./..."
			}
		}
		if last := len(all) - 1; last >= 0 && all[last].dir == m.dir {
			all[last].patterns = append(all[last].patterns, m.patterns...)
		} else {
			all = append(all, m)
		}
	}
	return all
}

// test runs the tests of packages of a module, and adds the results to r. It fails if a test
// failed.
func (w *wine) test(ctx context.Context, out io.Writer, o options, m module, r *result) error {
	args := []string{"test", "-json", "-count=1", "-exec", w.program, "-timeout", o.timeout.String()}
	if o.short {
		args = append(args, "-short")
	}
	if o.only != "" {
		args = append(args, "-run", o.only)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, m.patterns...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = m.dir, append(windows(), w.environment()...), os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // makes go test end its tests
	cmd.WaitDelay = 10 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil {
			r.take(out, e)
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go test: %w; %d tests failed", err, len(r.failed))
	}
	return nil
}

// leftOut begins a line in which a test binary names an example that it leaves out.
// Examples cannot skip themselves.
const leftOut = "left out: "

// take records an event. It prints the outcome of each package and the output of failed
// tests.
func (r *result) take(out io.Writer, e event) {
	name := e.Package
	if e.Test != "" {
		name += "." + e.Test
	}
	switch e.Action {
	case "output", "build-output":
		r.said[name] = append(r.said[name], e.Output)
		if what, ok := strings.CutPrefix(e.Output, leftOut); ok {
			r.skipped = append(r.skipped, e.Package+"."+strings.TrimSpace(what))
		}
		return
	case "pass":
		if e.Test != "" {
			r.passed++
		}
	case "fail", "build-fail":
		r.failed = append(r.failed, name)
		fmt.Fprint(out, strings.Join(r.said[name], ""))
		if e.Test == "" {
			r.printUnfinished(out, e.Package)
		}
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, name+": "+reason(r.said[name]))
		}
	default:
		return
	}
	delete(r.said, name)
	if e.Test == "" {
		fmt.Fprintf(out, "%-5s %s %.1f s\n", e.Action, e.Package, e.Elapsed)
	}
}

// printUnfinished prints what the tests of a package have said that neither passed nor failed, because
// the program ended first: at a panic, or when its time was up.
func (r *result) printUnfinished(out io.Writer, pkg string) {
	for _, name := range slices.Sorted(maps.Keys(r.said)) {
		if strings.HasPrefix(name, pkg+".") {
			fmt.Fprintf(out, "UNFINISHED: %s\n%s", name, strings.Join(r.said[name], ""))
			delete(r.said, name)
		}
	}
}

// reason returns the last line that a skipped test has printed, without file and line.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") || line == "" {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			_, line, _ = strings.Cut(text, ": ")
		}
		return line
	}
	return "no reason was given"
}

// print prints how many tests passed, and which were skipped and failed.
func (r *result) print(out io.Writer) {
	fmt.Fprintf(out, "\n%d tests passed, %d failed, %d were skipped\n", r.passed, len(r.failed), len(r.skipped))
	for _, s := range r.skipped {
		fmt.Fprintf(out, "skipped: %s\n", s)
	}
	for _, f := range r.failed {
		fmt.Fprintf(out, "FAILED: %s\n", f)
	}
}
