package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"
)

// A result is what was measured of a way, with so many calls or streams open at a time.
type result struct {
	way
	load     string
	open     int
	rate     float64 // calls, or messages there and back, a second
	ratio    float64 // of the time to grpc-go's
	p50, p99 time.Duration
	memory   float64 // for each call or stream, in both processes, in bytes
}

func (p *plan) title() string {
	return fmt.Sprintf("calls and streams of %d bytes between two processes, medians of %d rounds of %v", size, p.rounds, p.lasts)
}

// head prints what is measured, and the head of the table.
func (p *plan) head(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s, %s/%s, %d CPUs: %s\n\n"+
		"| open at a time | network | stack | a second | time against grpc-go | p50 | p99 | memory of each |\n|---|---|---|---:|---:|---:|---:|---:|\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), p.title())
	return err
}

// resultOf returns the medians of answers. base has the answers of the way to compare with,
// round by round.
func resultOf(w way, load string, open int, answers, base []answer) result {
	r := result{way: w, load: load, open: open}
	of := func(value func(i int) float64) float64 { return median(len(answers), value) }
	r.rate = of(func(i int) float64 { return answers[i].rate() })
	r.ratio = of(func(i int) float64 { return base[i].rate() / answers[i].rate() })
	r.p50 = median(len(answers), func(i int) time.Duration { return answers[i].P50 })
	r.p99 = median(len(answers), func(i int) time.Duration { return answers[i].P99 })
	r.memory = of(func(i int) float64 { return float64(answers[i].Memory) / float64(open) })
	return r
}

func (a answer) rate() float64 { return float64(a.Done) / a.Took.Seconds() }

// lines prints a line for each result.
func lines(out io.Writer, results []result) error {
	for _, r := range results {
		if _, err := fmt.Fprintf(out, "| %d %s | %s | %s | %.0f | %.2f | %v | %v | %.1f KB |\n",
			r.open, r.load, r.network, r.stack, r.rate, r.ratio, rounded(r.p50), rounded(r.p99), r.memory/1000); err != nil {
			return err
		}
	}
	return nil
}

// rounded returns d with three digits.
func rounded(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}

// median returns the median of n values; of two middle values, the higher one.
func median[T cmp.Ordered](n int, value func(int) T) T {
	all := make([]T, n)
	for i := range all {
		all[i] = value(i)
	}
	slices.Sort(all)
	return all[n/2]
}
