// Realistic measures calls of a service like those of real programs: with deadlines, a token
// in the metadata, OpenTelemetry's traces and metrics on both sides, and interceptors that
// log, authenticate and recover from panics. The other benchmarks measure empty services,
// in which only the transport takes time.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

func main() {
	serve := flag.String("serve", "", "be the second process: serve `stack target`")
	var p plan
	flag.IntVar(&p.pairs, "pairs", 9, "pairs of measurements, nearcall and grpc-go in turn")
	flag.DurationVar(&p.lasts, "time", 300*time.Millisecond, "duration of a measurement")
	flag.Parse()
	var err error
	if *serve != "" {
		err = servePeer(*serve)
	} else {
		err = p.run(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "realistic:", err)
		os.Exit(1)
	}
}

// A plan says how much to measure.
type plan struct {
	pairs int
	lasts time.Duration
}

// run prints a line for each way and kind of call.
func (p plan) run(ctx context.Context, out io.Writer) error {
	if p.pairs < 1 || p.lasts <= 0 {
		return fmt.Errorf("%d pairs of %v: both must be positive", p.pairs, p.lasts)
	}
	fmt.Fprintf(out, "%s, %s/%s, %d CPUs: medians of %d pairs of %v\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), p.pairs, p.lasts)
	fmt.Fprintln(out, "| path | call | nearcall p50 | p99 | grpc-go p50 | p99 | time against grpc-go |")
	fmt.Fprintln(out, "|---|---|---:|---:|---:|---:|---:|")
	for _, w := range ways() {
		if err := p.way(ctx, out, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// way prints the lines of one way.
func (p plan) way(ctx context.Context, out io.Writer, w way) error {
	near, stop, err := w.near()
	if err != nil {
		return err
	}
	defer stop()
	far, stop, err := w.far()
	if err != nil {
		return err
	}
	defer stop()
	for _, k := range kinds {
		for _, c := range []caller{near, far} { // warm up
			if _, err := measure(ctx, k, c, p.lasts); err != nil {
				return err
			}
		}
		var nears, fars results
		for pair := range p.pairs {
			turns := []func() error{
				func() error { return nears.add(measure(ctx, k, near, p.lasts)) },
				func() error { return fars.add(measure(ctx, k, far, p.lasts)) },
			}
			for i := range turns { // alternate which goes first
				if err := turns[(i+pair)%2](); err != nil {
					return err
				}
			}
		}
		fmt.Fprintf(out, "| %s | %s | %v | %v | %v | %v | %.2f |\n", w.name, k.name,
			nears.p50(), nears.p99(), fars.p50(), fars.p99(), ratio(nears, fars))
	}
	return nil
}
