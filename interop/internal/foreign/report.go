package foreign

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A report holds the results of a run.
type report struct {
	kinds   []string
	results []result
	left    map[string]int // by kind, how many tests of class absent were not run
	stale   table          // lines of the table that match no test
}

// print writes the report. It returns an error if the results do not match the table.
func (r *report) print(out io.Writer) error {
	r.counts(out)
	wrong := 0
	for _, res := range r.results {
		switch good := res.state.good(); {
		case !good && res.line == nil:
			wrong++
			fmt.Fprintf(out, "NOT IN THE TABLE: %s on %s: %s (%d tries): %s\n\t%s\n", res.id(), res.kind, res.state, res.tries, res.note, res.log)
		case good && res.line != nil && !res.line.atTimes:
			wrong++
			fmt.Fprintf(out, "PASSES NOW: %s on %s; line %d of the table says: %s\n", res.id(), res.kind, res.line.number, res.line.reason)
		case good && res.tries > 1:
			fmt.Fprintf(out, "unstable: %s on %s passed when it was tried again, alone (try %d)\n", res.id(), res.kind, res.tries)
		}
	}
	for _, l := range r.stale {
		wrong++
		fmt.Fprintf(out, "NO SUCH TEST: line %d of the table: %s\n", l.number, l.reason)
	}
	if wrong > 0 {
		return fmt.Errorf("%d results are not as the table says", wrong)
	}
	return nil
}

// counts writes the number of tests in each state, by kind.
func (r *report) counts(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tpassed\tskipped\tas the table says\tnot in the table\tnot run\t")
	for _, k := range r.kinds {
		var passed, skipped, listed, unlisted int
		for _, res := range r.results {
			switch {
			case res.kind != k:
			case res.state == pass:
				passed++
			case res.state == skip:
				skipped++
			case res.line != nil:
				listed++
			default:
				unlisted++
			}
		}
		if passed+skipped+listed+unlisted > 0 {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", k, passed, skipped, listed, unlisted, r.left[k])
		}
	}
	_ = w.Flush()
}
