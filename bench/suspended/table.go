package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// promise is the factor by which suspended tasks may slow down a call.
const promise = 1.5

// head prints what is measured, and the head of the table.
func (p *plan) head(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s, %s/%s, %d CPUs: unary calls of %d bytes to a service on a loop, one after another, without and with %d suspended tasks; "+
		"medians of %d pairs of %v, and of the ratios the least and the most\n\n"+
		"| network | loop | beside | p50 without | p50 with | ratio | p99 without | p99 with | ratio |\n|---|---|---|%s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), size, p.tasks, p.pairs, p.lasts, strings.Repeat("---:|", 6))
	return err
}

// print prints a line of the table.
func (p *plan) print(out io.Writer, l line, pairs []pair) error {
	cells := []string{l.network, l.loop, l.crowd.name}
	for _, at := range percentiles {
		cells = append(cells,
			round(median(pairs, func(v pair) time.Duration { return at.of(v.without) })),
			round(median(pairs, func(v pair) time.Duration { return at.of(v.with) })),
			fmt.Sprintf("%.2f (%.2f to %.2f)", median(pairs, at.ratio), each(pairs, at.ratio)[0], each(pairs, at.ratio)[len(pairs)-1]))
	}
	_, err := fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	return err
}

// broken returns how the line breaks the promise, which does not cover goroutines that are
// not on a loop.
func (l line) broken(pairs []pair) []string {
	var all []string
	for _, at := range percentiles {
		if r := median(pairs, at.ratio); r > promise && !l.crowd.stranger {
			all = append(all, fmt.Sprintf("%v: %s is %.2f times as long", l, at.name, r))
		}
	}
	return all
}

// verdict prints whether all lines kept the promise.
func (p *plan) verdict(out io.Writer, broken []string) error {
	said := "kept."
	if len(broken) > 0 {
		said = "not kept:\n\n- " + strings.Join(broken, "\n- ")
	}
	_, err := fmt.Fprintf(out, "\nThat p50 and p99 are at most %.1f times as long beside tasks that are suspended was %s\n", promise, said)
	return err
}

// A percentile is a percentile in the table.
type percentile struct {
	name string
	of   func(times) time.Duration
}

var percentiles = []percentile{
	{"p50", func(t times) time.Duration { return t.p50 }},
	{"p99", func(t times) time.Duration { return t.p99 }},
}

func (p percentile) ratio(v pair) float64 { return float64(p.of(v.with)) / float64(p.of(v.without)) }

// each returns a value of each pair, sorted.
func each[T cmp.Ordered](pairs []pair, value func(pair) T) []T {
	all := make([]T, len(pairs))
	for i, v := range pairs {
		all[i] = value(v)
	}
	slices.Sort(all)
	return all
}

// median returns the median of a value of pairs; of two middle values, the higher one.
func median[T cmp.Ordered](pairs []pair, value func(pair) T) T {
	return each(pairs, value)[len(pairs)/2]
}

func round(d time.Duration) string { return d.Round(10 * time.Nanosecond).String() }
