package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// writeMarkdown prints the report as tables that also read well as they are:
// one of all rows, then one for each.
func writeMarkdown(w io.Writer, r *Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.header())
	fmt.Fprintf(&b, "### %s\n\nThe ratio to %s's time, less is better, and the time itself.\n\n", reportTitle, Baseline)
	rivals := r.rivals()
	head := []string{"row", "context"}
	for _, rival := range rivals {
		head = append(head, rival.Name)
	}
	overview := [][]string{head}
	for _, results := range r.rows() {
		line := []string{results[0].Row.Title(), results[0].Row.Context()}
		for _, rival := range rivals {
			cell := ""
			if result, ok := find(results, rival.Name); ok {
				cell = fmt.Sprintf("%s (%s)", ratio(result.Ratio), nanoseconds(result.Ns))
			}
			line = append(line, cell)
		}
		overview = append(overview, line)
	}
	table(&b, 2, overview)
	fmt.Fprintf(&b, "\nTimes move with the machine's other work. The ratio is the median of pairs, and moves less.\n")
	for _, results := range r.rows() {
		row := results[0].Row
		fmt.Fprintf(&b, "\n### %s, %s context (`%s`)\n\n", row.Title(), row.Context(), row.Name)
		head := []string{"rival", "ns/op", "ratio"}
		if row.Kind.Unary {
			for _, p := range Percentiles {
				head = append(head, fmt.Sprintf("p%d ns", p))
			}
		}
		cells := [][]string{append(head, "B/op", "allocs/op")}
		for _, result := range results {
			line := []string{result.Rival.Name, number(result.Ns), ratio(result.Ratio)}
			if row.Kind.Unary {
				for _, ns := range result.Latency {
					line = append(line, strconv.FormatFloat(ns, 'f', 0, 64))
				}
			}
			cells = append(cells, append(line, number(result.Bytes), number(result.Allocs)))
		}
		table(&b, 1, cells)
	}
	fmt.Fprintf(&b, "\nPercentiles are of single calls, in runs of their own; each call has one reading of the clock in it, %v here.\n", r.Clock)
	fmt.Fprintf(&b, "With several callers ns/op is the time of all divided by the calls of all, and percentiles are what a caller waits.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// table prints cells, the first line of which is the head. So many columns
// that hold text are aligned to the left.
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

// number prints as many digits as mean something.
func number(v float64) string {
	if v >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// ratio prints two or three digits that count.
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

// nanoseconds prints a time in the unit that suits it, in three digits.
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
