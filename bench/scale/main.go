// Scale measures how calls and streams between two processes fare as more of them are open at
// a time: from one to ten thousand, over shared memory, unix sockets and TCP, with nearcall
// and grpc-go. It prints a table, and can draw it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if beASide() {
		return
	}
	p := plan{}
	open := flag.String("open", "1,10,100,1000,10000", "`numbers` of calls or streams that are open at a time, with a comma between them")
	networks := flag.String("networks", "shm,unix,tcp", "`networks`, with a comma between them; grpc-go has no shm")
	svg := flag.String("svg", "", "draw the curves to `file`")
	flag.IntVar(&p.rounds, "rounds", 3, "rounds, in which the stacks take turns")
	flag.DurationVar(&p.lasts, "time", 500*time.Millisecond, "of a stack's turn")
	flag.Parse()
	err := p.choose(*networks, *open)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = p.run(ctx, os.Stdout, *svg)
		if err != nil && ctx.Err() != nil {
			err = ctx.Err() // the cause of the failure
		}
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// A plan is what to measure.
type plan struct {
	ways   []way
	open   []int // calls or streams at a time
	rounds int
	lasts  time.Duration // per measurement
}

// choose sets the fields that flags give as lists.
func (p *plan) choose(networks, open string) (err error) {
	if p.ways, err = waysOf(strings.Split(networks, ",")); err != nil {
		return err
	}
	for _, s := range strings.Split(open, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-open: %q is not a positive number", s)
		}
		p.open = append(p.open, n)
	}
	if p.rounds < 1 || p.lasts <= 0 {
		return errors.New("-rounds and -time must be positive")
	}
	return nil
}

// run measures everything, prints a table, and draws the curves to a file unless its name is
// empty.
func (p *plan) run(ctx context.Context, out io.Writer, svg string) error {
	if err := p.head(out); err != nil {
		return err
	}
	var all []result
	for _, load := range loads {
		for _, n := range p.open {
			results, err := p.measure(ctx, load, n)
			if err != nil {
				return err
			}
			if err := lines(out, results); err != nil {
				return err
			}
			all = append(all, results...)
		}
	}
	if svg == "" {
		return nil
	}
	return os.WriteFile(svg, []byte(draw(all, p.title())), 0o666)
}

// measure measures all ways with n calls or streams at a time.
func (p *plan) measure(ctx context.Context, load string, n int) (results []result, err error) {
	var pairs []*pair
	defer func() {
		for _, s := range pairs {
			err = errors.Join(err, s.stop())
		}
	}()
	for _, w := range p.ways {
		s, err := startPair(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", w, err)
		}
		pairs = append(pairs, s)
	}
	answers := make([][]answer, len(pairs))
	for round := range p.rounds {
		for i := range pairs {
			at := (round + i) % len(pairs) // so that each round starts with another pair
			a, err := pairs[at].run(load, n, p.lasts)
			if err != nil {
				return nil, fmt.Errorf("%v, %d %s: %w", pairs[at].way, n, load, err)
			}
			answers[at] = append(answers[at], a)
		}
	}
	for i, s := range pairs {
		results = append(results, resultOf(s.way, load, n, answers[i], answers[baselineOf(p.ways, s.way)]))
	}
	return results, nil
}
