package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/nearcall/nearcall"
)

// A report is the results of a tour, and the machine it ran on.
type report struct {
	Version string    `json:"nearcall"`
	Go      string    `json:"go"`
	Date    time.Time `json:"date"`
	Machine machine   `json:"machine"`
	Rounds  int       `json:"rounds"`
	Clock   int64     `json:"clock_ns"` // cost of reading the clock, which latencies include

	// OtherLoad is the share of the processors that other programs used, from 0 to 1.
	OtherLoad float64 `json:"other_load"`

	Rows []row `json:"rows"`

	// Processes are the rows of calls to a second process.
	Processes []row `json:"processes"`

	// LeftOut are the paths that the system does not support, and why.
	LeftOut []string `json:"left_out,omitempty"`
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

func newReport(rows, processes []row, leftOut []string, otherLoad float64) report {
	return report{
		Version: nearcall.Version,
		Go:      runtime.Version(),
		Date:    time.Now().UTC().Truncate(time.Second),
		Machine: machine{runtime.GOOS, runtime.GOARCH, cpuModel(), runtime.NumCPU(), runtime.GOMAXPROCS(0)},
		Rounds:  rounds,
		Clock:   clockCost().Nanoseconds(),
		Rows:    rows,

		OtherLoad: otherLoad,
		Processes: processes,
		LeftOut:   leftOut,
	}
}

func (r report) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// cpuModel returns the name of the CPU, or "" if the system does not tell.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
