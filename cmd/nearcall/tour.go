package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

func tourCommand() *cobra.Command {
	var budget time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "tour", Short: "call one service by every path, with gRPC beside it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if budget <= 0 {
				return usageError(fmt.Sprintf("-time %v leaves no time to measure", budget))
			}
			r, err := wholeTour(c.Context(), budget, c.ErrOrStderr())
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(c.OutOrStdout(), r)
			default:
				r.writeSummary(c.OutOrStdout())
			}
			return nil
		},
	}
	c.Flags().DurationVar(&budget, "time", 12*time.Second, "how long to measure; the longer, the steadier the figures")
	c.Flags().BoolVar(&asJSON, "json", false, "print every kind of call on every path, with percentiles, as JSON")
	return c
}

// wholeTour measures all paths: those within the process, then those to a second process. It
// leaves out what the system does not support. It prints what it is doing to w, one line per kind of call.
func wholeTour(ctx context.Context, budget time.Duration, w io.Writer) (r report, err error) {
	r = newReport()
	from := 0.0
	for i, s := range stretches {
		if s.missing != nil {
			if err := s.missing(); err != nil {
				r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s, and what is compared with it: %v", s.paths[0].name, err))
				continue
			}
		}
		t := tour{stretch: s, service: service{}, calls: calls, budget: time.Duration(s.share * float64(budget)), rounds: rounds}
		rows, err := t.run(ctx, func(call string, done float64) {
			fmt.Fprintf(w, "%3.0f %%  %s\n", 100*(from+s.share*done), call)
		})
		if err != nil {
			return report{}, err
		}
		from += s.share
		if i == 0 {
			r.Rows = rows
		} else {
			r.Processes = append(r.Processes, rows...)
		}
	}
	return r, nil
}

// rounds is how often each path is measured in a pair with gRPC. Figures are medians.
const rounds = 5

// A tour calls one service by several paths, alternating each with the baseline.
type tour struct {
	stretch
	service testpb.TestServiceServer
	calls   []call
	budget  time.Duration
	rounds  int
}

// run measures every call over every path. It returns the rows call by call. For each call the
// baseline comes first. It says which call it measures next, and which share is done.
func (t *tour) run(ctx context.Context, say func(call string, done float64)) (rows []row, err error) {
	opened := make([]connection, 0, len(t.paths)+1)
	defer func() {
		for _, c := range opened {
			err = errors.Join(err, c.close())
		}
	}()
	for _, path := range t.all() {
		c, err := path.open(t.service)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.name, err)
		}
		c.path = path.name
		opened = append(opened, c)
	}
	for i, call := range t.calls {
		say(call.name, float64(i)/float64(len(t.calls)))
		some, err := t.compare(ctx, call, opened)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// warmUp is the length of the first round, as a share of a full round. The first round is not
// counted.
const warmUp = 0.25

// compare measures one call over all connections, of which the first is the baseline.
func (t *tour) compare(ctx context.Context, call call, conns []connection) (rows []row, err error) {
	lanes := make([]*lane, len(conns))
	for i, c := range conns {
		if lanes[i], err = newLane(c, call); err != nil {
			return nil, err
		}
	}
	// A round measures every path but the baseline once, each in a pair with the baseline.
	slots := float64(len(t.calls)*len(t.paths)*2) * (float64(t.rounds) + warmUp)
	length := time.Duration(float64(t.budget) / slots)
	base, others := lanes[0], lanes[1:]
	for round := range t.rounds + 1 {
		for i, l := range others {
			pair, d := []*lane{l, base}, length
			if (round+i)%2 == 0 { // alternate which goes first
				pair = []*lane{base, l}
			}
			if round == 0 {
				d = time.Duration(warmUp * float64(length))
			}
			for _, one := range pair {
				if err := one.measure(ctx, d); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", one.path, call.name, err)
				}
			}
			if round == 0 {
				l.reset()
				base.reset()
				continue
			}
			l.ratios = append(l.ratios, l.rates[len(l.rates)-1]/base.rates[len(base.rates)-1])
		}
	}
	for _, l := range lanes {
		rows = append(rows, l.row())
	}
	return rows, nil
}
