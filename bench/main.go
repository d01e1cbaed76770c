// Command bench is the tournament: nearcall and what one would use instead,
// row by row, in one process.
//
//	go run .                              every row, every rival
//	go run . -rows unary -rivals nearcall
//	go test -bench Row                    the same as benchmarks, for benchstat and pprof
//
// Rivals take turns with grpchan, pair by pair, and figures are medians. The
// ratio is time to grpchan's time, pair by pair: less is better. B/op and
// allocs/op are the whole process's, the handler's own among them; those that
// no rival can avoid are listed at type service. Absolute times move from
// machine to machine, and on a busy one from minute to minute; ratios much
// less so.
//
// It is a module of its own, so that rivals' dependencies stay in here.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	var bad usageError
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &bad):
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// A usageError is the fault of a flag.
type usageError struct{ error }

func run(args []string, stdout, stderr io.Writer) error {
	t, err := parse(args, stderr)
	if err != nil {
		return err
	}
	results, err := t.Run()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s; medians of %d pairs of %v\n\n", header(time.Now()), t.Pairs, t.Time)
	return writeMarkdown(stdout, results)
}

// parse returns the tournament that the flags ask for.
func parse(args []string, stderr io.Writer) (*Tournament, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	rowsMatch := flags.String("rows", "", "rows whose names match this regular expression; all by default")
	rivalsMatch := flags.String("rivals", "", "rivals whose names match this regular expression; all by default")
	pairs := flags.Int("pairs", 5, "pairs of measurements for each rival and row")
	length := flags.Duration("time", 200*time.Millisecond, "time of a measurement")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stderr, "usage: bench [flags]\n\nrows:   %s\nrivals: %s\n\n",
			strings.Join(names(Rows, rowName), ", "), strings.Join(names(Rivals, rivalName), ", "))
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return nil, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil && *pairs < 1 {
		err = fmt.Errorf("-pairs %d: at least 1 is needed", *pairs)
	}
	if err == nil && *length <= 0 {
		err = fmt.Errorf("-time %v leaves no time to measure", *length)
	}
	t := &Tournament{Pairs: *pairs, Time: *length, Progress: stderr}
	if err == nil {
		t.Rows, err = choose("-rows", *rowsMatch, Rows, rowName)
	}
	if err == nil {
		t.Rivals, err = choose("-rivals", *rivalsMatch, Rivals, rivalName)
	}
	if err != nil {
		return nil, usageError{err}
	}
	t.Baseline = Rivals[slices.IndexFunc(Rivals, func(r Rival) bool { return r.Name == Baseline })]
	return t, nil
}

func rowName(r Row) string     { return r.Name }
func rivalName(r Rival) string { return r.Name }

func names[T any](all []T, name func(T) string) []string {
	var out []string
	for _, v := range all {
		out = append(out, name(v))
	}
	return out
}

// choose returns those of all whose names match. That none does is an error.
func choose[T any](flag, pattern string, all []T, name func(T) string) ([]T, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	var chosen []T
	for _, v := range all {
		if re.MatchString(name(v)) {
			chosen = append(chosen, v)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%s %q matches none of %s", flag, pattern, strings.Join(names(all, name), ", "))
	}
	return chosen, nil
}
