package main

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// shown returns a report with the summary's rows, each path 10 times as fast as the one
// before, and some other rows.
func shown() report {
	r := report{LeftOut: []string{"a path: nobody has one"}}
	for _, call := range calls[:2] {
		for i, s := range stretches {
			took, times := 100*time.Microsecond, 1.0
			for _, p := range s.all() {
				if p.label == "" {
					continue
				}
				row := row{Path: p.name, Call: call.name, P50: took, P99: 2 * took, PerSecond: 1e9 / float64(took), TimesGRPC: times}
				took, times = took/10, times*10
				if i == 0 {
					r.Rows = append(r.Rows, row)
				} else {
					r.Processes = append(r.Processes, row)
				}
			}
		}
	}
	return r
}

func summaryOf(t *testing.T, r report) string {
	t.Helper()
	var b strings.Builder
	r.writeSummary(&b)
	return b.String()
}

func TestTheSummaryShowsAndSaysWhatCallsTake(t *testing.T) {
	got := summaryOf(t, shown())
	wanted := []string{
		"\n    grpc-go, bufconn            100µs   1.0×  ████████████████████████████████\n",
		"\n    nearcall                      1µs   100×  █\n",
		"\n    nearcall                     10µs    10×  ███\n",
		"\nLeft out: a path: nobody has one\n",
	}
	if runtime.GOOS == "linux" {
		wanted = append(wanted, "\n    nearcall, shared memory       1µs   100×  █\n")
	}
	for _, want := range wanted {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "grpc-go, bufconn"); n != 2 {
		t.Errorf("bufconn is shown %d times in\n%s", n, got)
	}
}

// TestTheSummaryDoesWithoutASecondProcess checks that the summary does not mention paths that
// the system lacks.
func TestTheSummaryDoesWithoutASecondProcess(t *testing.T) {
	r := shown()
	r.Processes = nil
	if got := summaryOf(t, r); strings.Contains(got, "second process") || !strings.Contains(got, "within a process") {
		t.Errorf("it prints\n%s", got)
	}
}
