// Command wine runs the tests of packages, and nearcall's tour, as Windows programs under
// Wine. It builds them on this system, without cgo.
//
//	go run ./tools/wine ./...           the core module
//	go run ./tools/wine ./cmd/nearcall  a module in a folder of it
//	go run ./tools/wine -C interop .    another module
//
// Wine's files are in their own directory (-prefix), which is created if it is
// missing. Skipped tests are listed at the end, with the reason.
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
	"syscall"
	"time"
)

type options struct {
	prefix  string // the directory of Wine's files
	module  string // the directory that packages are listed in
	short   bool
	tour    bool
	only    string // tests to run, as a regular expression; all if empty
	timeout time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.prefix, "prefix", "bin/wine", "the directory of Wine's files")
	flag.StringVar(&o.module, "C", ".", "the module's directory")
	flag.BoolVar(&o.short, "short", false, "run the short tests")
	flag.BoolVar(&o.tour, "tour", false, "run nearcall tour as well")
	flag.StringVar(&o.only, "run", "", "tests to run, as a regular expression")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for one package's tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, o, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "wine:", err)
		os.Exit(1)
	}
}

// run runs the tests of the packages that match patterns, and prints a report. It fails if
// a test failed.
func run(ctx context.Context, out io.Writer, o options, patterns []string) (err error) {
	begun := time.Now()
	w, err := open(ctx, o.prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.serve(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, set up in %.0f s\n", w.version, time.Since(begun).Seconds())
	r := &result{said: make(map[string][]string)}
	for _, m := range byModule(o.module, patterns) {
		err = errors.Join(err, w.test(ctx, out, o, m, r))
	}
	r.print(out)
	if o.tour {
		err = errors.Join(err, w.tour(ctx, out, o))
	}
	return err
}

// tour builds and runs nearcall tour.
func (w *wine) tour(ctx context.Context, out io.Writer, o options) error {
	dir, err := os.MkdirTemp("", "nearcall-wine-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "nearcall.exe")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, ".")
	build.Dir, build.Env, build.Stderr = filepath.Join(o.module, "cmd", "nearcall"), windows(), os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the tour: %w", err)
	}
	fmt.Fprintln(out, "\nnearcall tour, to see that it runs: under Wine its figures say nothing of Windows")
	cmd := w.command(ctx, program, "tour", "-time", "3s")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the tour: %w", err)
	}
	return nil
}

// windows returns the environment that builds Windows programs.
func windows() []string {
	return append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
}
