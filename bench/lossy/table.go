package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// base is the stack that the others are compared with.
const base = "nearcall, QUIC"

// titles say what calls are measured beside.
var titles = map[string]string{upload: "beside an upload", download: "beside a download", nothing: "alone", fresh: "each on a new connection"}

// markdown returns the table of a load, with the conditions below it.
func (p *plan) markdown(load string, results []result) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "| calls %s | congestion control | p50 | to QUIC's | p99 | to QUIC's | calls | the stream |\n", titles[load])
	b.WriteString("|---|---|---:|---:|---:|---:|---:|---:|\n")
	var quic *result
	for i, r := range results {
		if r.load == load && r.Stack == base {
			quic = &results[i]
			break
		}
	}
	for _, r := range results {
		if r.load != load {
			continue
		}
		var p50, p99, stream string
		if quic != nil && r.Stack != base {
			p50, p99 = times(r.P50, quic.P50), times(r.P99, quic.P99)
		}
		if load == upload || load == download {
			stream = fmt.Sprintf("%.2f MB/s", r.rate/1e6)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %d | %s |\n", r.Stack, r.Congestion, shortly(r.P50), p50, shortly(r.P99), p99, r.Calls, stream)
	}
	c := p.conditions
	fmt.Fprintf(&b, "\n%v there and back on an empty link, %.3g %% of the packets lost in each direction, %.4g Mbit/s, a queue of %.0f kB; ",
		2*c.Delay, c.Loss*100, c.Rate*8/1e6, float64(c.Queue)/1e3)
	fmt.Fprintf(&b, "%.4g calls a second of %d bytes each way for %v. %s, %d CPUs, %s, %s.\n",
		1/p.interval(load).Seconds(), small, p.lasts, system(), runtime.NumCPU(), runtime.Version(), time.Now().Format(time.DateOnly))
	return b.Bytes()
}

// times returns how many times b is in a.
func times(a, b time.Duration) string {
	ratio := float64(a) / float64(max(b, 1))
	if ratio >= 9.95 {
		return fmt.Sprintf("%.0f×", ratio)
	}
	return fmt.Sprintf("%.1f×", ratio)
}

// shortly formats a time in milliseconds, with three digits.
func shortly(d time.Duration) string {
	ms := float64(d) / 1e6
	switch {
	case ms >= 99.95:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 9.995:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.2f ms", ms)
}

// system returns the kernel's name and version, as far as they are known.
func system() string {
	version, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(cmp.Or(map[string]string{"linux": "Linux"}[runtime.GOOS], runtime.GOOS) + " " + string(version))
}

// A place is where a file has a load's table.
type place struct {
	file          string
	before, after []byte // with the markers
}

// placeIn returns the place between the markers of a load.
func placeIn(file, load string) (place, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return place{}, err
	}
	begin, end := fmt.Sprintf("<!-- lossy %s: begin -->\n", load), fmt.Sprintf("<!-- lossy %s: end -->", load)
	from := bytes.Index(page, []byte(begin)) + len(begin)
	to := bytes.Index(page, []byte(end))
	if from < len(begin) || to < from {
		return place{}, fmt.Errorf("%s has no place for the table: it goes between %s and %s", file, strings.TrimSpace(begin), end)
	}
	return place{file, page[:from], page[to:]}, nil
}

// put replaces what the place has.
func (p place) put(table []byte) error {
	return os.WriteFile(p.file, slices.Concat(p.before, table, p.after), 0o666)
}
