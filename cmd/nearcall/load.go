package main

import (
	"runtime"
	"sync"
	"time"
)

// A load is how busy other programs keep the processors, as the tour found it.
type load struct {
	measure func(time.Duration) float64
	shares  []float64
}

const (
	probeTime = 60 * time.Millisecond

	// busyShare is from which share on figures are not shown: what is compared has
	// not had the same processors then.
	busyShare = 0.15
)

// probe measures it once. A tour does so before and after each stretch.
func (l *load) probe() { l.shares = append(l.shares, l.measure(probeTime)) }

// mean is what the probes have found, from 0 to 1.
func (l *load) mean() float64 {
	var sum float64
	for _, s := range l.shares {
		sum += s
	}
	return sum / float64(max(len(l.shares), 1))
}

// probeOthers is how a tour measures it.
var probeOthers = othersShare

// othersShare returns which share of the processors this process did not get while it
// wanted all of them. What took it are other programs, or a limit on this one.
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
