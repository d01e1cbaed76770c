// Command bench is the tournament: nearcall and what one would use instead,
// row by row, in one process.
//
//	go run .                                 every row, every rival: some minutes
//	go run . -quick                          a first look, in half a minute
//	go run . -rows unary -rivals nearcall
//	go run . -md FILE -csv FILE -svg FILE    tables, data, a picture
//	go run . -short FILE                     a picture of some rows
//	go test -bench Row                       the same as benchmarks, for benchstat and pprof
//
// Rivals take turns with grpchan, pair by pair, and figures are medians. The
// ratio is time to grpchan's time, pair by pair: less is better. B/op and
// allocs/op are the whole process's, the handler's own among them; those that
// no rival can avoid are listed at type service. Unary calls are also timed one
// by one, in runs of their own, for percentiles. Absolute times move from
// machine to machine, and on a busy one from minute to minute; ratios much
// less so.
//
// A row is a line of Rows, a rival a line of Rivals.
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
	t, outputs, err := parse(args, stderr)
	if err != nil {
		return err
	}
	for i := range outputs {
		if err := outputs[i].open(); err != nil {
			return err
		}
		defer outputs[i].file.Close()
	}
	r := &Report{Machine: machine(), Date: time.Now(), Pairs: t.Pairs, Time: t.Time, Parked: t.Parked, Clock: clockReading()}
	if r.Results, err = t.Run(); err != nil {
		return err
	}
	for _, o := range outputs {
		if err := o.finish(r); err != nil {
			return err
		}
	}
	return writeMarkdown(stdout, r)
}

// Measurements that take some minutes, and those that are quick.
const (
	defaultPairs, quickPairs = 7, 3
	defaultTime, quickTime   = 120 * time.Millisecond, 25 * time.Millisecond
)

const defaultParked = 100

// parse returns the tournament that the flags ask for, and where to write what
// comes of it.
func parse(args []string, stderr io.Writer) (*Tournament, []output, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	rowsMatch := flags.String("rows", "", "rows whose names match this regular `expression`; all by default")
	rivalsMatch := flags.String("rivals", "", "rivals whose names match this regular `expression`; all by default")
	pairs := flags.Int("pairs", defaultPairs, "pairs of measurements for each rival and row")
	length := flags.Duration("time", defaultTime, "time of a measurement")
	parked := flags.Int("parked", defaultParked, "goroutines that sleep meanwhile, as most of a server's do")
	quick := flags.Bool("quick", false, fmt.Sprintf("a first look: -pairs %d -time %v, where they are not given", quickPairs, quickTime))
	outputs := []output{{write: writeMarkdown}, {write: writeCSV}, {write: writeSVG}, {write: writeShortSVG}}
	flags.StringVar(&outputs[0].path, "md", "", "write the tables to `file`, too")
	flags.StringVar(&outputs[1].path, "csv", "", "write a line for each result to `file`")
	flags.StringVar(&outputs[2].path, "svg", "", "draw the ratios to `file`")
	flags.StringVar(&outputs[3].path, "short", "", "draw some rows' ratios to `file`")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stderr, "usage: bench [flags]\n\nrows:   %s\nrivals: %s\n\n",
			strings.Join(names(Rows, rowName), ", "), strings.Join(names(Rivals, rivalName), ", "))
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return nil, nil, err
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *quick {
		given := make(map[string]bool)
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["pairs"] {
			*pairs = quickPairs
		}
		if !given["time"] {
			*length = quickTime
		}
	}
	if err == nil && *pairs < 1 {
		err = fmt.Errorf("-pairs %d: at least 1 is needed", *pairs)
	}
	if err == nil && *length <= 0 {
		err = fmt.Errorf("-time %v leaves no time to measure", *length)
	}
	if err == nil && *parked < 0 {
		err = fmt.Errorf("-parked %d: 0 is the least", *parked)
	}
	t := &Tournament{Pairs: *pairs, Time: *length, Parked: *parked, Progress: stderr}
	if err == nil {
		t.Rows, err = choose("-rows", *rowsMatch, Rows, rowName)
	}
	if err == nil {
		t.Rivals, err = choose("-rivals", *rivalsMatch, Rivals, rivalName)
	}
	if err != nil {
		return nil, nil, usageError{err}
	}
	t.Baseline = Rivals[slices.IndexFunc(Rivals, func(r Rival) bool { return r.Name == Baseline })]
	return t, slices.DeleteFunc(outputs, func(o output) bool { return o.path == "" }), nil
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
