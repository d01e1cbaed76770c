package main

import (
	"runtime"
	"sync"
	"time"
)

// A load records how busy other programs kept the processors during a tour.
type load struct {
	measure func(time.Duration) float64
	shares  []float64
}

const (
	probeTime = 60 * time.Millisecond

	// At a load of busyShare or more the figures come with a warning, because the compared paths did
	// not have equal use of the processors.
	busyShare = 0.15
)

// probe measures the load once. A tour does so before and after each stretch.
func (l *load) probe() { l.shares = append(l.shares, l.measure(probeTime)) }

// mean returns the mean of the probes, from 0 to 1.
func (l *load) mean() float64 {
	var sum float64
	for _, s := range l.shares {
		sum += s
	}
	return sum / float64(max(len(l.shares), 1))
}

// probeOthers measures the load of other programs. Tests replace it.
var probeOthers = othersShare

// othersShare keeps all processors busy for d, and returns the share of their time that this
// process did not get. Other programs took it, or a limit on this process withheld it.
func othersShare(d time.Duration) float64 {
	var all sync.WaitGroup
	n := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	cpu, begun := processCPU(), now()
	for range n {
		all.Go(func() {
			for now()-begun < d {
			}
		})
	}
	all.Wait()
	wanted := time.Duration(n) * (now() - begun)
	return min(max(1-float64(processCPU()-cpu)/float64(max(wanted, 1)), 0), 1)
}
