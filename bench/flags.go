package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A usageError is an error in the command line.
type usageError struct{ error }

// Defaults for a full run, and for -quick.
const (
	defaultPairs, quickPairs = 7, 3
	defaultTime, quickTime   = 120 * time.Millisecond, 25 * time.Millisecond
)

const defaultParked = 100

// parse returns an event for each table that the flags select, with the rows and rivals
// to measure and the files to write.
func parse(args []string, stderr io.Writer) ([]*event, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	tableNames := flags.String("tables", "", "tables, with commas between their `names`; all by default")
	rowsMatch := flags.String("rows", "", "rows whose names match this regular `expression`; all by default")
	rivalsMatch := flags.String("rivals", "", "rivals whose names match this regular `expression`; all by default")
	pairs := flags.Int("pairs", defaultPairs, "pairs of measurements for each rival and row")
	length := flags.Duration("time", defaultTime, "time of a measurement")
	parked := flags.Int("parked", defaultParked, "goroutines that sleep meanwhile, as most of a server's do")
	quick := flags.Bool("quick", false, fmt.Sprintf("a first look: -pairs %d -time %v, where they are not given", quickPairs, quickTime))
	results := flags.String("results", "", "write data and pictures of each table to `directory`")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stderr, "usage: bench [flags]\n\n")
		for _, t := range Tables(defaultParked) {
			fmt.Fprintf(stderr, "table %s, %s\n  rows:   %s\n  rivals: %s\n\n", t.Name, t.Title,
				strings.Join(names(t.Rows, rowName), ", "), strings.Join(names(t.Rivals, rivalName), ", "))
		}
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return nil, err
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
	var tables []Table
	if err == nil {
		tables, err = chooseTables(*tableNames, Tables(*parked))
	}
	var events []*event
	if err == nil {
		events, err = chooseEvents(tables, *rowsMatch, *rivalsMatch)
	}
	if err != nil {
		return nil, usageError{err}
	}
	for _, e := range events {
		e.Pairs, e.Time, e.Parked, e.Progress = *pairs, *length, *parked, stderr
		if *results != "" {
			e.outputs = resultFiles(filepath.Join(*results, e.table.File))
		}
	}
	return events, nil
}

// chooseTables returns the named tables. Without names it returns all.
func chooseTables(named string, all []Table) ([]Table, error) {
	if named == "" {
		return all, nil
	}
	var chosen []Table
	for name := range strings.SplitSeq(named, ",") {
		i := slices.IndexFunc(all, func(t Table) bool { return t.Name == name })
		if i < 0 && name == sharedMemory {
			return nil, fmt.Errorf("-tables %q: %s has no shared memory that nearcall can use, only Linux has", name, runtime.GOOS)
		}
		if i < 0 {
			return nil, fmt.Errorf("-tables %q: there is none but %s", name, strings.Join(names(all, tableName), ", "))
		}
		if slices.ContainsFunc(chosen, func(t Table) bool { return t.Name == name }) {
			return nil, fmt.Errorf("-tables %q: it is named twice", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// chooseEvents returns an event for each table that has rows and rivals whose names match.
// It is an error if no table has.
func chooseEvents(tables []Table, rows, rivals string) ([]*event, error) {
	var events []*event
	var failed error
	for _, t := range tables {
		e := &event{table: t, Tournament: &Tournament{Table: t.Name, Baseline: t.base()}}
		var err error
		if e.Rows, err = choose("-rows", rows, t.Rows, rowName); err == nil {
			e.Rivals, err = choose("-rivals", rivals, t.Rivals, rivalName)
		}
		if err == nil {
			events = append(events, e)
		} else if failed == nil {
			failed = err
		}
	}
	if len(events) == 0 {
		return nil, failed
	}
	return events, nil
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

// choose returns the elements of all whose names match. It is an error if none does.
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
