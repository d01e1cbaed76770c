// Processors measures small calls between two processes that have few processors: with
// GOMAXPROCS of 1, 2 and 8 in both, and one or two CPUs that both share. -idle measures
// instead the CPU time of a connection without calls, -quota limits the CPU time of the two
// processes, and -busy keeps the CPUs busy with others.
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
	networks := flag.String("networks", "shm,unix", "`networks`, with a comma between them; grpc-go has unix alone")
	stacks := flag.String("stacks", "nearcall,grpc-go", "`stacks`, with a comma between them")
	procs := flag.String("gomaxprocs", "1,2,8", "GOMAXPROCS of both processes: `numbers`, with a comma between them")
	cpus := flag.String("cpus", "1,2", "CPUs that both processes may use together: `numbers`, with a comma between them")
	busy := flag.String("busy", "", "`numbers` of other processes that keep the CPUs busy, with a comma between them")
	var p plan
	flag.IntVar(&p.rounds, "rounds", 5, "rounds, in which the stacks take turns")
	flag.DurationVar(&p.lasts, "time", 300*time.Millisecond, "of a stack's turn")
	flag.DurationVar(&p.idle, "idle", 0, "measure what connections use while they are idle for so `long`, once they have been used for a second")
	flag.IntVar(&p.quota, "quota", 0, "`percent` of a CPU's time for both processes together, by a cgroup; 0 for as much as there is")
	flag.Parse()
	err := p.choose(*networks, *stacks, *procs, *cpus, *busy)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		if err = p.run(ctx, os.Stdout); err != nil && ctx.Err() != nil {
			err = ctx.Err() // the cause of the failure
		}
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "processors:", err)
		os.Exit(1)
	}
}

// A plan is what to measure.
type plan struct {
	ways        []way
	procs, cpus []int // all combinations are measured
	busy        []int // with each of these numbers of other processes; nil for none, and no column
	rounds      int
	lasts       time.Duration // per measurement
	idle        time.Duration // time to be idle instead of calls; 0 for calls
	quota       int           // percent of a CPU; 0 for none
}

// choose sets the fields that flags give as lists.
func (p *plan) choose(networks, stacks, procs, cpus, busy string) (err error) {
	if p.ways, err = waysOf(strings.Split(networks, ","), strings.Split(stacks, ",")); err != nil {
		return err
	}
	if busy != "" {
		if p.busy, err = numbers(busy, 0); err != nil {
			return fmt.Errorf("-busy: %w", err)
		}
	}
	if p.procs, err = numbers(procs, 1); err != nil {
		return fmt.Errorf("-gomaxprocs: %w", err)
	}
	if p.cpus, err = numbers(cpus, 1); err != nil {
		return fmt.Errorf("-cpus: %w", err)
	}
	if p.rounds < 1 || p.lasts <= 0 || p.idle < 0 || p.quota < 0 {
		return errors.New("-rounds and -time must be positive, -idle and -quota not negative")
	}
	return nil
}

// numbers parses a list of numbers that are not less than least.
func numbers(list string, least int) ([]int, error) {
	var all []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return nil, fmt.Errorf("%q is not a number from %d on", s, least)
		}
		all = append(all, n)
	}
	return all, nil
}

// run measures everything, and prints a table.
func (p *plan) run(ctx context.Context, out io.Writer) error {
	allowed, err := allowedCPUs()
	if err != nil {
		return err
	}
	if err := p.head(out, allowed); err != nil {
		return err
	}
	for _, procs := range p.procs {
		for _, cpus := range p.cpus {
			if cpus > len(allowed) {
				continue // the head of the table says so
			}
			for _, busy := range p.busyOrNone() {
				if err := p.measure(ctx, out, place{procs, allowed[:cpus], p.quota, busy}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// busyOrNone returns p.busy, or no other process.
func (p *plan) busyOrNone() []int {
	if p.busy == nil {
		return []int{0}
	}
	return p.busy
}

// measure prints the table's lines for a place.
func (p *plan) measure(ctx context.Context, out io.Writer, at place) (err error) {
	var pairs []*pair
	defer func() {
		for _, s := range pairs {
			err = errors.Join(err, s.stop())
		}
	}()
	others, err := startLoad(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, others.stop()) }()
	for _, w := range p.ways {
		s, err := startPair(ctx, w, at)
		if err != nil {
			return fmt.Errorf("%v: %w", w, err)
		}
		pairs = append(pairs, s)
	}
	if p.idle > 0 {
		return p.idleLines(out, pairs)
	}
	for _, callers := range []int{1, 64} {
		if err := p.callLines(out, pairs, callers); err != nil {
			return err
		}
	}
	return nil
}
