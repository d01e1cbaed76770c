package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Tournament measures each rival in turn with the baseline, row by row, so
// that a machine that gets slower or faster meanwhile does so
// for both.
type Tournament struct {
	Table    string // its name, for Progress
	Rows     []Row
	Rivals   []Rival
	Baseline Rival
	Pairs    int           // of measurements, for each rival
	Time     time.Duration // that a measurement takes
	Parked   int           // goroutines that sleep meanwhile
	Progress io.Writer
}

// A Result is what became of a rival in a row. Its numbers are medians.
type Result struct {
	Row    Row
	Rival  Rival
	Ns     float64 // an operation
	Bytes  float64
	Allocs float64
	Ratio  float64 // of the time to the baseline's, pair by pair

	CPU      float64 // nanoseconds that the processors worked for an operation, in both processes
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

// park starts n goroutines that sleep until release is called, which returns
// when they have ended.
//
// The runtime starts new goroutines with the average stack of those that it
// saw. Beside no others the tournament's own, which is deep, decides: then a
// rival that starts a goroutine for each call gets a stack that never has to
// grow, which it would not in a server, most of whose goroutines sleep.
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
	for len(base.samples) < t.Pairs { // it has no rival here
		if err := base.measure(); err != nil {
			return nil, err
		}
	}
	results[baseAt] = base.result()
	return results, nil
}

// against measures a rival and the baseline in pairs.
func (t *Tournament) against(base *entrant, row Row, rival Rival) (_ Result, err error) {
	e, err := t.enter(row, rival)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = e.leave(err) }()
	for pair := range t.Pairs {
		both := [2]*entrant{base, e}
		if pair%2 == 1 { // neither always goes first
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
