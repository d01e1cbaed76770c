// Package labeltest looks at the labels that goroutines have for profiles.
package labeltest

import (
	"bytes"
	"runtime/pprof"
	"strings"
	"sync"
)

var ofCaller sync.Mutex

// OfCaller returns the labels of the calling goroutine as a goroutine profile has
// them, as in {"k":"v"}, and {} where there are none.
func OfCaller() string {
	ofCaller.Lock() // one goroutine at a time has this frame and has the lock
	defer ofCaller.Unlock()
	return Of("labeltest.profile")[0]
}

// Of returns the labels of the goroutines in whose stacks there is a function whose full
// name ends in name. Goroutines with the same stack and the same labels count as one.
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
