// Command bench compares nearcall with its alternatives. It has seven tables: in one
// process, in one process on an event loop, and between two processes over unix sockets,
// over TCP, over a WebSocket, over QUIC and, on Linux, over shared memory. Each table has
// rows, the kinds of calls that are measured, and rivals.
//
//	go run .                                 every table, row and rival: a quarter of an hour
//	go run . -quick                          a first look, in some minutes
//	go run . -tables in-process,unix
//	go run . -tables unix -rows 'empty|10MB' -rivals 'nearcall|raw'
//	NEARCALL_BENCH_LIVE=64 go run .          beside 64 MiB of live heap in each process
//	go run . -results DIR                    data and pictures of each table
//	go test -bench Row                       the first table as benchmarks, for benchstat and pprof
//	go test -bench Loop                      the table on an event loop
//	go test -bench Peer                      the others
//
// Each rival is measured in turns with the table's baseline, which is grpchan in process
// and grpc-go between processes. All figures are medians. The ratio is the rival's time
// to the baseline's in the same pair: less is better. B/op and allocs/op are those of the
// whole process, including the handler's; type service lists those that no rival can
// avoid. For percentiles, unary calls are also timed individually, in separate runs.
// Absolute times vary between machines, and on a busy machine from minute to minute;
// ratios vary much less.
//
// Between processes each rival's server runs in a second process of this program. That
// process reports the CPU time it used, so that figures include what a call costs
// both sides.
//
// Each row shows nearcall's rank among the rivals that make calls. The command fails if
// nearcall is not first everywhere, and names the rows.
//
// A row is a line of inProcessRows, loopRows or peerRows, a rival a line of
// inProcessRivals, loopRivals, peerRivals, webSocketRivals, quicRivals or
// sharedMemoryRivals.
//
// The command is its own module, to keep the rivals' dependencies out of nearcall's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	live()
	if beThePeer(honest) {
		return
	}
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	var bad usageError
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
	case errors.As(err, &bad):
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	events, err := parse(args, stderr)
	if err != nil {
		return err
	}
	for _, e := range events {
		for i := range e.outputs {
			if err := e.outputs[i].open(); err != nil {
				return err
			}
			defer e.outputs[i].file.Close()
		}
	}
	var behind behindError
	for i, e := range events {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		r, err := e.hold(stdout)
		if err != nil {
			return err
		}
		behind = append(behind, r.behind()...)
	}
	if behind != nil {
		return behind
	}
	return nil
}

// An event is the measurement of one table.
type event struct {
	*Tournament
	table   Table
	outputs []output
}

// hold measures, prints the results and writes the files.
func (e *event) hold(stdout io.Writer) (r *Report, err error) {
	r = &Report{
		Table: e.table, Machine: machine(), Date: time.Now(), Pairs: e.Pairs, Time: e.Time, Parked: e.Parked, Clock: clockReading(),
	}
	if e.table.Processes {
		if r.Line, err = lineTrip(); err != nil {
			fmt.Fprintf(e.Progress, "%s: there is no watched line: %v\n", e.table.Name, err)
		}
	}
	if r.Results, err = e.Run(); err != nil {
		return nil, err
	}
	for _, o := range e.outputs {
		if err := o.finish(r); err != nil {
			return nil, err
		}
	}
	return r, writeMarkdown(stdout, r)
}
