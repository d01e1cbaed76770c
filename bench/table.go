package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// header says where and when, in a line.
func header(now time.Time) string {
	return fmt.Sprintf("%s, %d cores, GOMAXPROCS %d, %s %s/%s, %s",
		cpuModel(), runtime.NumCPU(), runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH, now.Format("2006-01-02"))
}

// cpuModel returns the name of the CPU where the system tells it.
func cpuModel() string {
	const unknown = "unknown CPU"
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

// writeMarkdown prints the results as a table that also reads well as it is.
func writeMarkdown(w io.Writer, results []Result) error {
	cells := [][]string{{"row", "rival", "ns/op", "B/op", "allocs/op", "ratio to " + Baseline}}
	for _, r := range results {
		cells = append(cells, []string{
			r.Row.Name, r.Rival.Name,
			number(r.Ns), number(r.Bytes), number(r.Allocs), strconv.FormatFloat(r.Ratio, 'f', 2, 64),
		})
	}
	const text = 2 // columns that are aligned to the left
	widths := make([]int, len(cells[0]))
	for _, line := range cells {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
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
	_, err := io.WriteString(w, b.String())
	return err
}

// number prints as many digits as mean something.
func number(v float64) string {
	if v >= 99.95 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}
