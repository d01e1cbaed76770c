// Command bench is the tournament: nearcall and what one would use instead,
// row by row. It has five tables: in one process, in one process on an event loop,
// and between two processes over unix sockets, over TCP and, on Linux, over
// shared memory.
//
//	go run .                                 every table, row and rival: a quarter of an hour
//	go run . -quick                          a first look, in some minutes
//	go run . -tables in-process,unix
//	go run . -tables unix -rows 'empty|10MB' -rivals 'nearcall|raw'
//	go run . -results DIR                    tables, data and pictures of each table
//	go run . -md FILE -csv FILE -svg FILE    the same of one table, in-process where none is given
//	go run . -short FILE                     a picture of some of its rows
//	go test -bench Row                       the first table as benchmarks, for benchstat and pprof
//	go test -bench Loop                      the one on an event loop
//	go test -bench Peer                      the others
//
// Rivals take turns with the table's baseline, grpchan in process and grpc-go
// between processes, pair by pair, and figures are medians. The ratio is time
// to the baseline's time, pair by pair: less is better. B/op and allocs/op are
// the whole process's, the handler's own among them; those that no rival can
// avoid are listed at type service. Unary calls are also timed one by one, in
// runs of their own, for percentiles. Absolute times move from machine to
// machine, and on a busy one from minute to minute; ratios much less so.
//
// Between processes each rival's server is a process of its own, this program
// again. It tells how long the processors have worked for it, so that it is
// known what a call costs both sides.
//
// A row is a line of inProcessRows, loopRows or peerRows, a rival a line of
// inProcessRivals, loopRivals, peerRivals or sharedMemoryRivals.
//
// It is a module of its own, so that rivals' dependencies stay in here.
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
	for i, e := range events {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		if err := e.hold(stdout); err != nil {
			return err
		}
	}
	return nil
}

// An event is a table of which something is measured.
type event struct {
	*Tournament
	table   Table
	outputs []output
}

// hold measures, prints and writes what was found.
func (e *event) hold(stdout io.Writer) (err error) {
	r := &Report{
		Table: e.table, Machine: machine(), Date: time.Now(), Pairs: e.Pairs, Time: e.Time, Parked: e.Parked, Clock: clockReading(),
	}
	if e.table.Processes {
		if r.Line, err = lineTrip(); err != nil {
			fmt.Fprintf(e.Progress, "%s: there is no watched line: %v\n", e.table.Name, err)
		}
	}
	if r.Results, err = e.Run(); err != nil {
		return err
	}
	for _, o := range e.outputs {
		if err := o.finish(r); err != nil {
			return err
		}
	}
	return writeMarkdown(stdout, r)
}
