// Suspended measures what waiting tasks cost others: it makes unary calls to a service on a
// loop, without and with 1,000 suspended tasks on the same loop, alternately in one run.
// Waiting streams are measured on the caller's connection and on another, which shows the
// connection's part of the cost. The same number of goroutines that are not on the loop
// shows the runtime's part.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"
)

func main() {
	if beTheServer() {
		return
	}
	var p plan
	lines := flag.String("lines", "", "lines of the table that match this regular `expression`, such as 'unix' or 'streams'; all by default")
	flag.IntVar(&p.tasks, "tasks", 1000, "tasks that are suspended")
	flag.IntVar(&p.pairs, "pairs", 9, "pairs of measurements, without and with them")
	flag.DurationVar(&p.lasts, "time", 300*time.Millisecond, "of a measurement")
	flag.Parse()
	err := p.choose(*lines)
	if err == nil {
		err = p.run(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suspended:", err)
		os.Exit(1)
	}
}

// A plan says what to measure, and how.
type plan struct {
	lines []line
	tasks int
	pairs int
	lasts time.Duration
}

// A line is a line of the table.
type line struct {
	way
	crowd crowd
}

func (l line) String() string { return l.network + ", " + l.loop + ", " + l.crowd.name }

// choose keeps the lines whose names match.
func (p *plan) choose(lines string) error {
	if p.tasks < 1 || p.pairs < 1 || p.lasts <= 0 {
		return fmt.Errorf("%d tasks, %d pairs of %v: each has to be more than nothing", p.tasks, p.pairs, p.lasts)
	}
	match, err := regexp.Compile(lines)
	if err != nil {
		return err
	}
	for _, w := range ways {
		for _, c := range crowds {
			if l := (line{w, c}); match.MatchString(l.String()) {
				p.lines = append(p.lines, l)
			}
		}
	}
	if len(p.lines) == 0 {
		return fmt.Errorf("no line matches %q", lines)
	}
	return nil
}

func (p *plan) run(out io.Writer) error {
	if err := p.head(out); err != nil {
		return err
	}
	var broken []string
	for _, l := range p.lines {
		pairs, err := p.measure(l)
		if err == nil {
			err = p.print(out, l, pairs)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", l, err)
		}
		broken = append(broken, l.broken(pairs)...)
	}
	return p.verdict(out, broken)
}

// A pair is a measurement without the crowd and one with it.
type pair struct{ without, with times }

// measure measures without and with the crowd in turns, and alternates which goes first. Each
// measurement has its own server and loop, so that none inherits memory that an earlier
// crowd has made grow.
func (p *plan) measure(l line) ([]pair, error) {
	var took []time.Duration // reused, so that its growth is not measured
	pairs := make([]pair, p.pairs)
	for i := range pairs {
		turns := []int{0, p.tasks}
		if i%2 == 1 {
			slices.Reverse(turns)
		}
		for _, tasks := range turns {
			var err error
			if took, err = l.beside(tasks, p.lasts, took); err != nil {
				return nil, err
			}
			if tasks == 0 {
				pairs[i].without = sum(took)
			} else {
				pairs[i].with = sum(took)
			}
		}
	}
	return pairs, nil
}
