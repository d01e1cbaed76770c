package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"

	"github.com/nearcall/nearcall"
)

// A report is the results of a tour, and the machine it ran on.
type report struct {
	Version string    `json:"nearcall"`
	Go      string    `json:"go"`
	Date    time.Time `json:"date"`
	Machine machine   `json:"machine"`
	Rounds  int       `json:"rounds"`

	Rows      []row    `json:"rows"`
	Processes []row    `json:"processes"`          // rows of calls to a second process
	LeftOut   []string `json:"left_out,omitempty"` // paths that the system does not support, and why
}

type machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu,omitempty"` // empty if unknown
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
}

// A row is one call over one path.
type row struct {
	Path      string        `json:"path"`
	Call      string        `json:"call"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	PerSecond float64       `json:"calls_per_second"`
	TimesGRPC float64       `json:"times_grpc"`
}

// newReport returns a report without results.
func newReport() report {
	m := machine{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0)}
	if all, err := cpu.Info(); err == nil && len(all) > 0 {
		m.CPU = all[0].ModelName
	}
	return report{Version: nearcall.Version, Go: runtime.Version(), Date: time.Now().UTC().Truncate(time.Second), Rounds: rounds, Machine: m}
}

// writeSummary draws the median times of a small call and of a stream, stretch by stretch.
func (r report) writeSummary(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "nearcall %s, %s, %s/%s, %s, %d cores, GOMAXPROCS %d, %s\n\n",
		r.Version, r.Go, m.OS, m.Arch, cmp.Or(m.CPU, m.Arch), m.Cores, m.GOMAXPROCS, r.Date.Format("2006-01-02"))
	rows := make(map[[2]string]row)
	for _, row := range slices.Concat(r.Rows, r.Processes) {
		rows[[2]string{row.Path, row.Call}] = row
	}
	for _, call := range calls[:2] {
		fmt.Fprintf(w, "%s: median time, and calls a second against grpc-go's\n\n", call.name)
		for _, s := range stretches {
			shown := slices.DeleteFunc(s.all(), func(p path) bool { return p.label == "" })
			longest := time.Duration(0)
			for _, p := range shown {
				longest = max(longest, rows[[2]string{p.name, call.name}].P50)
			}
			if longest == 0 { // the system lacks them
				continue
			}
			fmt.Fprintf(w, "  %s\n", s.to)
			for _, p := range shown {
				if row, ok := rows[[2]string{p.name, call.name}]; ok {
					bar := strings.Repeat("█", max(int(32*row.P50/longest), 1))
					fmt.Fprintf(w, "    %-24s %8s  %5s  %s\n", p.label, brief(row.P50), frequency(row.TimesGRPC)+"×", bar)
				}
			}
			fmt.Fprintln(w)
		}
	}
	for _, what := range r.LeftOut {
		fmt.Fprintf(w, "Left out: %s\n\n", what)
	}
	fmt.Fprintln(w, "-json prints every kind of call on every path, with percentiles.")
}
