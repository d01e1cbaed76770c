package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// writeAll prints every row.
func (r report) writeAll(w io.Writer) error {
	text := r.heading() + "\n" + r.warning() + formatRows(r.Rows) + "\nTo a second process:\n\n" + formatRows(r.Processes) + "\n" + r.leftOut() + r.explanation()
	_, err := io.WriteString(w, text)
	return err
}

// heading returns what was measured, where and when.
func (r report) heading() string {
	return fmt.Sprintf("nearcall %s, %s, %s, %s\n", r.Version, r.Go, r.Machine, r.Date.Format("2006-01-02"))
}

// leftOut returns a line for each path that was left out.
func (r report) leftOut() string {
	var b strings.Builder
	for _, what := range r.LeftOut {
		fmt.Fprintf(&b, "Left out: %s\n", what)
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	return b.String()
}

// formatRows formats a table, with an empty line between calls.
func formatRows(rows []row) string {
	cells := [][]string{{"path", "call", "p50", "p99", "calls/s", "times gRPC"}}
	for i, row := range rows {
		if i > 0 && row.Call != rows[i-1].Call {
			cells = append(cells, nil)
		}
		cells = append(cells, []string{
			row.Path, row.Call, formatTime(row.P50), formatTime(row.P99), formatCount(row.PerSecond), formatRatio(row.TimesGRPC),
		})
	}
	return formatTable(cells, 2)
}

func (r report) explanation() string {
	return fmt.Sprintf(`times gRPC is how many calls a path makes while grpc-go makes one of the same kind to the same service: calls/s
of the two, measured one right after the other, the median of %d such pairs. Within a process that is grpc-go over
bufconn. To a second process it is grpc-go over the same kind of socket; for shared memory, over a unix socket.
A call of a stream is the whole stream; one of bidi echo is a message there and back on an open stream.
Inline handlers run on the caller's goroutine even if the context can be cancelled, which speeds up unary calls.
p50 and p99 include the reading of the clock, about %d ns here; calls/s is measured without it.
`, r.Rounds, r.Clock)
}

// String describes the machine in a few words.
func (m machine) String() string {
	cpu := m.CPU
	if cpu == "" {
		cpu = m.Arch
	}
	return fmt.Sprintf("%s/%s, %s, %d cores, GOMAXPROCS %d", m.OS, m.Arch, cpu, m.Cores, m.GOMAXPROCS)
}

// formatTable aligns cells. text is the number of columns that it aligns to the left; it aligns
// the others to the right. It draws a rule under the first line. A nil line is empty.
func formatTable(cells [][]string, text int) string {
	var widths []int
	for _, line := range cells {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, line := range cells {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				b.WriteString("   ")
			}
			switch {
			case i >= text:
				b.WriteString(pad + cell)
			case i < len(line)-1:
				b.WriteString(cell + pad)
			default:
				b.WriteString(cell)
			}
		}
		b.WriteByte('\n')
		if n == 0 {
			total := 3 * (len(widths) - 1)
			for _, w := range widths {
				total += w
			}
			b.WriteString(strings.Repeat("-", max(total, 0)) + "\n")
		}
	}
	return b.String()
}

// formatTime formats d with three digits and a unit.
func formatTime(d time.Duration) string {
	units := []struct {
		unit time.Duration
		name string
	}{{time.Microsecond, "µs"}, {time.Millisecond, "ms"}, {time.Second, "s"}}
	if d < time.Microsecond {
		return fmt.Sprintf("%d ns", d.Nanoseconds())
	}
	for i, u := range units {
		v := float64(d) / float64(u.unit)
		if v < 999.5 || i == len(units)-1 {
			return threeDigits(v) + " " + u.name
		}
	}
	panic("unreachable")
}

func threeDigits(v float64) string {
	switch {
	case v < 9.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// formatCount formats a whole number in groups of three digits.
func formatCount(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func formatRatio(v float64) string {
	if v < 9.95 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
