package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Tournament measures the rivals of each row. It alternates between a rival and the
// baseline, so that changes of the machine's speed affect both.
type Tournament struct {
	Table    string // the table's name, for Progress
	Rows     []Row
	Rivals   []Rival
	Baseline Rival
	Pairs    int           // pairs of measurements per rival
	Time     time.Duration // per measurement
	Parked   int           // goroutines that sleep during measurements
	Progress io.Writer
}

// A Result is the result of a rival in a row. All numbers are medians.
type Result struct {
	Row    Row
	Rival  Rival
	Ns     float64 // time per operation
	Bytes  float64
	Allocs float64
	Ratio  float64 // of the time to the baseline's in the same pair

	CPU      float64 // CPU time of both processes per operation, in nanoseconds
	CPURatio float64

	Latency Latency // of unary calls
}

// Run returns a result for each rival that takes part, row by row.
func (t *Tournament) Run() ([]Result, error) {
	defer park(t.Parked)()
	var results []Result
	for _, row := range t.Rows {
		some, err := t.row(row)
		if err != nil {
			return nil, err
		}
		results = append(results, some...)
	}
	return results, nil
}

// park starts n goroutines that sleep until release is called. release waits for them to
// end.
//
// The runtime gives new goroutines the average stack size of existing ones. Without
// sleeping goroutines, the tournament's own deep stack determines that average: a rival that
// starts a goroutine for each call would get stacks that never have to grow, unlike in a
// server, most of whose goroutines sleep.
func park(n int) (release func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() { <-done })
	}
	return func() {
		close(done)
		all.Wait()
	}
}

func (t *Tournament) row(row Row) (results []Result, err error) {
	base, err := t.enter(row, t.Baseline)
	if err != nil {
		return nil, err
	}
	defer func() { err = base.leave(err) }()
	baseAt := -1
	for _, rival := range t.Rivals {
		if rival.Name == t.Baseline.Name {
			baseAt = len(results)
			results = append(results, Result{})
			continue
		}
		if !rival.Takes(row) {
			continue
		}
		fmt.Fprintf(t.Progress, "%s, %s: %s\n", t.Table, row.Name, rival.Name)
		r, err := t.against(base, row, rival)
		if err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	if baseAt < 0 {
		return results, nil
	}
	for len(base.samples) < t.Pairs { // the baseline has no rival in this row
		if err := base.measure(); err != nil {
			return nil, err
		}
	}
	results[baseAt] = base.result()
	return results, nil
}

// against measures a rival and the baseline in alternation, Pairs times.
func (t *Tournament) against(base *entrant, row Row, rival Rival) (_ Result, err error) {
	e, err := t.enter(row, rival)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = e.leave(err) }()
	for pair := range t.Pairs {
		both := [2]*entrant{base, e}
		if pair%2 == 1 { // alternate which goes first
			both = [2]*entrant{e, base}
		}
		for _, who := range both {
			if err := who.measure(); err != nil {
				return Result{}, err
			}
		}
		e.ratios = append(e.ratios, e.last().NsPerOp()/base.last().NsPerOp())
		e.cpuRatios = append(e.cpuRatios, e.last().cpuPerOp()/base.last().cpuPerOp())
	}
	return e.result(), nil
}
