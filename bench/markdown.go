package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// writeMarkdown prints the report as tables that are also readable as plain text: an
// overview of all rows, then a table for each row.
func writeMarkdown(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.header())
	fmt.Fprintf(&b, "### %s\n\nThe ratio to %s's time, less is better, and the time itself.\n\n", r.title(), r.Table.Baseline)
	var notes footnotes
	r.overview(&b, &notes, func(v Result) string { return fmt.Sprintf("%s (%s)", ratio(v.Ratio), nanoseconds(v.Ns)) })
	notes.print(&b)
	fmt.Fprintf(&b, "\nTimes move with the machine's other work. The ratio is the median of pairs, and moves less.\n")
	if r.Table.Processes {
		r.processes(&b)
	}
	r.who(&b)
	r.ranks(&b)
	for _, results := range r.rows() {
		row := results[0].Row
		fmt.Fprintf(&b, "\n### %s, %s context (`%s`)\n\n", row.Title(), row.Context(), row.Name)
		head := []string{"rival", "ns/op", "ratio"}
		if row.Kind.Unary {
			for _, p := range Percentiles {
				head = append(head, fmt.Sprintf("p%d ns", p))
			}
		}
		head = append(head, "B/op", "allocs/op")
		if r.Table.Processes {
			head = append(head, "CPU ns/op", "CPU ratio", "op/s")
		}
		cells := [][]string{head}
		for _, result := range results {
			line := []string{result.Rival.Name, number(result.Ns), ratio(result.Ratio)}
			if row.Kind.Unary {
				for _, ns := range result.Latency {
					line = append(line, strconv.FormatFloat(ns, 'f', 0, 64))
				}
			}
			line = append(line, number(result.Bytes), number(result.Allocs))
			if r.Table.Processes {
				line = append(line, number(result.CPU), ratio(result.CPURatio), perSecond(result))
			}
			cells = append(cells, line)
		}
		table(&b, 1, cells)
	}
	fmt.Fprintf(&b, "\nPercentiles come from separate runs, in which each call is timed by itself. That includes one reading of the clock: %v here.\n", r.Clock)
	fmt.Fprintf(&b, "With several callers ns/op is the time of all divided by the calls of all, and percentiles are what a caller waits.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// overview prints a line for each row, in which show formats each result. notes say why
// cells are empty.
func (r *Report) overview(b *strings.Builder, notes *footnotes, show func(Result) string) {
	rivals := r.rivals()
	head := []string{"row", "context"}
	for _, rival := range rivals {
		head = append(head, rival.Name)
	}
	cells := [][]string{head}
	for _, results := range r.rows() {
		row := results[0].Row
		line := []string{row.Title(), row.Context()}
		for _, rival := range rivals {
			cell := ""
			if result, ok := find(results, rival.Name); ok {
				cell = show(result)
			} else if why, ok := rival.absence(row); ok {
				cell = notes.mark(why)
			}
			line = append(line, cell)
		}
		cells = append(cells, line)
	}
	table(b, 2, cells)
}

// ranks prints nearcall's rank in each row, unless nothing was measured beside it.
func (r *Report) ranks(b *strings.Builder) {
	cells := [][]string{{"row", "rank", "behind"}}
	for _, results := range r.rows() {
		if k, ok := r.rank(results); ok && k.of > 1 {
			cells = append(cells, []string{results[0].Row.Name, k.String(), strings.Join(k.ahead, ", ")})
		}
	}
	if len(cells) > 1 {
		fmt.Fprintf(b, "\n### Rank of %s %s\n\nAmong the rivals that make calls. Lower bounds and other ways to use nearcall do not count.\n\n", r.Table.Rivals[0].Name, r.Table.Title)
		table(b, 3, cells)
	}
}

// processes prints the tables that only two processes have: calls per second, and CPU
// time.
func (r *Report) processes(b *strings.Builder) {
	fmt.Fprintf(b, "\n### Operations a second %s\n\nMore is better.\n\n", r.Table.Title)
	r.overview(b, new(footnotes), perSecond)
	fmt.Fprintf(b, "\n### Processor time of an operation %s, both processes together\n\n", r.Table.Title)
	fmt.Fprintf(b, "The ratio to %s's, less is better, and the time itself.\n\n", r.Table.Baseline)
	r.overview(b, new(footnotes), func(v Result) string { return fmt.Sprintf("%s (%s)", ratio(v.CPURatio), nanoseconds(v.CPU)) })
	fmt.Fprintf(b, "\nA row after a pause has the sleep's and the waking's processor time in it, but not in its time. "+
		"B/op and allocs/op are the calling process's alone.\n")
}

// who prints the rivals' notes, and which alternatives the table leaves out.
func (r *Report) who(b *strings.Builder) {
	list := ""
	for _, rival := range r.rivals() {
		if rival.Note != "" {
			list += fmt.Sprintf("- %s: %s\n", rival.Name, rival.Note)
		}
	}
	for _, part := range []string{list, r.Table.Apart} {
		if part != "" {
			fmt.Fprintf(b, "\n%s\n", strings.TrimSuffix(part, "\n"))
		}
	}
}

// footnotes say why cells are empty.
type footnotes []string

// mark returns the reference to a footnote with this text, which it adds if it is new.
func (f *footnotes) mark(why string) string {
	at := slices.Index(*f, why)
	if at < 0 {
		at = len(*f)
		*f = append(*f, why)
	}
	return raised(at + 1)
}

func (f footnotes) print(b *strings.Builder) {
	for i, why := range f {
		fmt.Fprintf(b, "\n%s %s.\n", raised(i+1), why)
	}
}

// raised returns n in superscript digits.
func raised(n int) string {
	var b strings.Builder
	for _, digit := range strconv.Itoa(n) {
		b.WriteRune([]rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[digit-'0'])
	}
	return b.String()
}

// perSecond formats the number of operations of all callers per second.
func perSecond(r Result) string { return strconv.FormatFloat(1e9/r.Ns, 'f', 0, 64) }

// table prints cells, whose first line is the head. The first text columns are aligned to
// the left, the others to the right.
func table(b *strings.Builder, text int, cells [][]string) {
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, line := range cells {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < text {
				b.WriteString("| " + cell + pad + " ")
			} else {
				b.WriteString("| " + pad + cell + " ")
			}
		}
		b.WriteString("|\n")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			if i < text {
				b.WriteString("|" + strings.Repeat("-", width+2))
			} else {
				b.WriteString("|" + strings.Repeat("-", width+1) + ":")
			}
		}
		b.WriteString("|\n")
	}
}

// number formats v with as many digits as are significant.
func number(v float64) string {
	if v >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// ratio formats v with two or three significant digits.
func ratio(v float64) string {
	switch {
	case v < 0.0995:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 9.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// nanoseconds formats a time in a suitable unit, with three digits.
func nanoseconds(v float64) string {
	units := [...]string{"ns", "µs", "ms", "s"}
	unit := 0
	for v >= 999.5 && unit < len(units)-1 {
		v /= 1000
		unit++
	}
	digits := 0
	if v < 99.95 && v > 0 {
		digits = 2 - max(0, int(math.Floor(math.Log10(v*1.0005))))
	}
	if unit == 0 {
		digits = min(digits, 1)
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + units[unit]
}
