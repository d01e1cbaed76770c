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

// head prints what is measured, and the head of the table.
func (p *plan) head(out io.Writer, allowed []int) error {
	what := fmt.Sprintf("calls of %d bytes between two processes, medians of %d rounds of %v", size, p.rounds, p.lasts)
	columns := []string{"p50", "p99", "calls/s", "CPU time of a call", "time against " + baseline.stack}
	if p.idle > 0 {
		what = fmt.Sprintf("CPU time in %v without calls, after a second with", p.idle)
		columns = []string{"client", "server", "together"}
	} else {
		columns = append([]string{"callers"}, columns...)
	}
	if p.quota > 0 {
		what += fmt.Sprintf("; both have %d %% of a CPU's time together", p.quota)
	}
	if most := slices.Max(p.cpus); most > len(allowed) {
		what += fmt.Sprintf("; there are no %d CPUs here", most)
	}
	if p.busy != nil {
		columns = append([]string{"busy"}, columns...)
		what += "; so many other processes keep the CPUs busy"
	}
	_, err := fmt.Fprintf(out, "%s, %s/%s, CPUs %v: %s\n\n| network | stack | GOMAXPROCS | CPUs | %s |\n|---|---|%s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, allowed, what, strings.Join(columns, " | "), strings.Repeat("---:|", 2+len(columns)))
	return err
}

// line prints a pair's line of the table.
func (p *plan) line(out io.Writer, s *pair, cells ...any) error {
	if p.busy != nil {
		cells = append([]any{s.busy}, cells...)
	}
	_, err := fmt.Fprintf(out, "| %s | %s | %d | %d |%s\n", s.network, s.stack, s.procs, len(s.cpus), fmt.Sprintf(strings.Repeat(" %v |", len(cells)), cells...))
	return err
}

// callLines measures the pairs in turns, and prints a line for each.
func (p *plan) callLines(out io.Writer, pairs []*pair, callers int) error {
	for _, s := range pairs {
		if _, err := s.call(callers, p.lasts); err != nil { // warm
			return fmt.Errorf("%v: %w", s.way, err)
		}
	}
	answers := make([][]answer, len(pairs))
	for round := range p.rounds {
		for i := range pairs {
			at := (round + i) % len(pairs) // so that each round starts with another pair
			a, err := pairs[at].call(callers, p.lasts)
			if err != nil {
				return fmt.Errorf("%v: %w", pairs[at].way, err)
			}
			answers[at] = append(answers[at], a)
		}
	}
	base := slices.IndexFunc(pairs, func(s *pair) bool { return s.way == baseline })
	for i, s := range pairs {
		ratio := ""
		if base >= 0 {
			ratio = fmt.Sprintf("%.2f", median(p.rounds, func(round int) float64 {
				return answers[i][round].mean() / answers[base][round].mean()
			}))
		}
		of := func(value func(answer) time.Duration) time.Duration {
			return median(p.rounds, func(round int) time.Duration { return value(answers[i][round]) }).Round(100 * time.Nanosecond)
		}
		if err := p.line(out, s, callers,
			of(func(a answer) time.Duration { return a.P50 }),
			of(func(a answer) time.Duration { return a.P99 }),
			fmt.Sprintf("%.0f", median(p.rounds, func(round int) float64 { return 1 / answers[i][round].mean() })),
			of(func(a answer) time.Duration { return a.Used / time.Duration(a.Calls) }),
			ratio); err != nil {
			return err
		}
	}
	return nil
}

// mean returns the time of the run divided by the number of calls, in seconds.
func (a answer) mean() float64 { return a.Took.Seconds() / float64(a.Calls) }

// median returns the median of n values; of two middle values, the higher one.
func median[T cmp.Ordered](n int, value func(int) T) T {
	all := make([]T, n)
	for i := range all {
		all[i] = value(i)
	}
	slices.Sort(all)
	return all[n/2]
}

// idleLines makes each pair call for a second and then rest, and prints the CPU time it used
// while resting.
func (p *plan) idleLines(out io.Writer, pairs []*pair) error {
	for _, s := range pairs {
		for _, callers := range []int{64, 1} {
			if _, err := s.call(callers, time.Second/2); err != nil {
				return fmt.Errorf("%v: %w", s.way, err)
			}
		}
		client, server, err := s.rest(p.idle)
		if err != nil {
			return fmt.Errorf("%v: %w", s.way, err)
		}
		micros := func(d time.Duration) string { return fmt.Sprintf("%d µs", d.Microseconds()) }
		if err := p.line(out, s, micros(client), micros(server), micros(client+server)); err != nil {
			return err
		}
	}
	return nil
}
