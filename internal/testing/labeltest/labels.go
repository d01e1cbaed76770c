// Package labeltest reads the profiler labels of goroutines.
package labeltest

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"sync"
)

var ofCaller sync.Mutex

// OfCaller returns the profiler labels of the calling goroutine in the format of a
// goroutine profile, such as {"k":"v"}, or {} if it has none.
func OfCaller() string {
	ofCaller.Lock() // no other caller must have the frame that Of looks for
	defer ofCaller.Unlock()
	return Of("labeltest.profile")[0]
}

// Of returns the profiler labels of the goroutines whose stacks contain a function whose
// full name ends in name. Goroutines with the same stack and the same labels count as one.
func Of(name string) []string {
	var found []string
	for record := range strings.SplitSeq(profile(), "\n\n") {
		if !strings.Contains(record, name+"+0x") {
			continue
		}
		labels := "{}"
		for line := range strings.Lines(record) {
			if l, ok := strings.CutPrefix(line, "# labels: "); ok {
				labels = strings.TrimSpace(l)
			}
		}
		found = append(found, labels)
	}
	return found
}

func profile() string {
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}
