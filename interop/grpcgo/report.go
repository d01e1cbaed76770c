package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

// A report holds the results of a run.
type report struct {
	results []result
	left    map[near.Kind]int // number of tests of class absent, which were not run
	stale   []line            // lines of the table that match no test
}

// unexpected returns the failures that the table does not list.
func (r *report) unexpected() (found []result) {
	for _, res := range r.results {
		if !res.state.good() && res.line == nil {
			found = append(found, res)
		}
	}
	return found
}

// needless returns the results that pass although the table lists them.
func (r *report) needless() (found []result) {
	for _, res := range r.results {
		if res.state.good() && res.line != nil && !res.line.atTimes {
			found = append(found, res)
		}
	}
	return found
}

// print writes the report. It returns an error if the results do not match the table.
func (r *report) print(out io.Writer) error {
	r.counts(out)
	for _, res := range r.results {
		if res.state.good() && res.tries > 1 {
			fmt.Fprintf(out, "unstable: %s on %s passed when it was tried again, alone (try %d)\n", res.id(), res.kind, res.tries)
		}
	}
	unexpected, needless := r.unexpected(), r.needless()
	for _, res := range unexpected {
		fmt.Fprintf(out, "NOT IN THE TABLE: %s on %s: %s (%d tries): %s\n\t%s\n", res.id(), res.kind, res.state, res.tries, res.note, res.log)
	}
	for _, res := range needless {
		fmt.Fprintf(out, "PASSES NOW: %s on %s; line %d of the table says: %s\n", res.id(), res.kind, res.line.number, res.line.reason)
	}
	for _, l := range r.stale {
		fmt.Fprintf(out, "NO SUCH TEST: line %d of the table: %s\n", l.number, l.reason)
	}
	if n := len(unexpected) + len(needless) + len(r.stale); n > 0 {
		return fmt.Errorf("%d failures that %s does not name, %d tests that it names and that pass, %d of its lines without a test",
			len(unexpected), tableFile, len(needless), len(r.stale))
	}
	return nil
}

// counts writes the number of tests in each state, by kind.
func (r *report) counts(out io.Writer) {
	columns := []string{"passed", "skipped"}
	for _, c := range classes {
		columns = append(columns, string(c))
	}
	columns = append(columns, "not in the table")
	count := make(map[near.Kind]map[string]int)
	for _, res := range r.results {
		if count[res.kind] == nil {
			count[res.kind] = make(map[string]int)
		}
		count[res.kind][column(res)]++
		count[res.kind][string(absent)] = r.left[res.kind]
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\t\n", strings.Join(columns, "\t"))
	for _, k := range near.Kinds {
		if count[k] == nil {
			continue
		}
		fmt.Fprintf(w, "%s\t", k)
		for _, c := range columns {
			fmt.Fprintf(w, "%d\t", count[k][c])
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
}

func column(res result) string {
	switch {
	case res.state == pass:
		return "passed"
	case res.state == skip:
		return "skipped"
	case res.line == nil:
		return "not in the table"
	}
	return string(res.line.class)
}

// sortResults sorts results by kind and test.
func sortResults(results []result) {
	slices.SortFunc(results, func(a, b result) int {
		if a.kind != b.kind {
			return slices.Index(near.Kinds, a.kind) - slices.Index(near.Kinds, b.kind)
		}
		return strings.Compare(a.id(), b.id())
	})
}
