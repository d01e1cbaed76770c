//go:build linux

package attack

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

var columns = []string{"attack", "attacker paid", "server before", "server now", "memory", "CPU", "verdict"}

// now describes what the attack cost the server. It names descriptors and threads only if
// there are many.
func (r *result) now() string {
	switch {
	case r.notMade != "", r.leftOut != "":
		return "?"
	case r.died != "":
		return r.died
	}
	now := fmt.Sprintf("%s, %s of CPU", size(r.server.memory), shortly(r.serverCPU))
	if n := r.server.descriptors; n > descriptorFloor {
		now += fmt.Sprintf(", %s descriptors", thousands(n))
	}
	if n := r.server.threads; n > threadFloor {
		now += fmt.Sprintf(", %s threads", thousands(n))
	}
	if r.kept > r.mayKeep() {
		now += fmt.Sprintf(", %s kept", size(r.kept))
	}
	return now
}

func (r *result) row() []string {
	return []string{
		r.attack.describe(r.count),
		fmt.Sprintf("%s sent, %s of memory, %s of CPU", size(r.sent), size(r.attacker.memory), shortly(r.attackerCPU)),
		r.attack.Before,
		r.now(),
		ratio(r.memoryRatio(), r.server.memory <= memoryFloor),
		ratio(r.cpuRatio(), r.serverCPU <= cpuFloor || r.attack.asked),
		r.verdict(),
	}
}

func (a *Attack) describe(count int) string {
	if strings.Contains(a.What, "%") {
		return fmt.Sprintf(a.What, thousands(count))
	}
	return a.What
}

func (r *result) verdict() string {
	switch {
	case r.leftOut != "":
		return "left out: " + r.leftOut
	case r.notMade != "":
		return "NOT MADE: " + r.notMade
	case len(r.beyond) > 0:
		return "BEYOND: " + strings.Join(r.beyond, "; ")
	case len(r.known) > 0:
		return "known: " + strings.Join(r.known, "; ") + ": " + r.attack.Known.Why
	}
	return "bounded"
}

// perByte returns what each byte sent cost the server, above the floors.
func (r *result) perByte() string {
	if r.sent == 0 {
		return "-"
	}
	memory, cpu := "-", "-"
	if r.server.memory > memoryFloor {
		memory = fmt.Sprintf("%.1f B", float64(r.server.memory)/float64(r.sent))
	}
	if r.serverCPU > cpuFloor {
		cpu = fmt.Sprintf("%.0f ns", float64(r.serverCPU)/float64(r.sent))
	}
	return memory + ", " + cpu
}

// ratio formats x, or returns "-" if the amount is too small to count.
func ratio(x float64, small bool) string {
	switch {
	case small:
		return "-"
	case x < 10:
		return fmt.Sprintf("%.1fx", x)
	}
	return fmt.Sprintf("%.0fx", x)
}

// String returns all that was measured.
func (r *result) String() string {
	var b strings.Builder
	b.WriteString(r.verdict())
	if !r.made() {
		return b.String()
	}
	if r.note != "" {
		fmt.Fprintf(&b, "\ncut short: %s", r.note)
	}
	fmt.Fprintf(&b, "\nserver: %s at most, %s held, %s kept, %s of CPU, %d descriptors, %d threads, stopped in %s",
		size(r.server.memory), size(r.held), size(r.kept), shortly(r.serverCPU), r.server.descriptors, r.server.threads, shortly(r.stopped))
	fmt.Fprintf(&b, "\nattacker: %s sent, %s of memory, %s of CPU, %d descriptors",
		size(r.sent), size(r.attacker.memory), shortly(r.attackerCPU), r.attacker.descriptors)
	fmt.Fprintf(&b, "\nfor a byte: %s", r.perByte())
	for _, p := range []struct {
		when string
		phase
	}{{"before", r.before}, {"during", r.during}, {"late", r.newcomer}} {
		fmt.Fprintf(&b, "\nhonest %s: %d calls, %d failed, p50 %s, p99 %s, at most %s",
			p.when, p.Calls, p.Failed, shortly(p.P50), shortly(p.P99), shortly(p.Max))
	}
	return b.String()
}

// made reports whether the attack was made.
func (r *result) made() bool { return r.count > 0 && r.leftOut == "" && r.notMade == "" }

func printTable(out io.Writer, results []*result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(columns, "\t"))
	for _, r := range results {
		fmt.Fprintln(w, strings.Join(r.row(), "\t"))
	}
	_ = w.Flush()
}

// writeCSV writes the table to a file, with the honest client's latency.
func writeCSV(file string, results []*result) error {
	last := len(columns) - 1
	table := [][]string{slices.Insert(slices.Clone(columns), last, "for a byte", "honest p99")}
	for _, r := range results {
		p99 := fmt.Sprintf("%s to %s", shortly(r.before.P99), shortly(r.during.P99))
		table = append(table, slices.Insert(r.row(), last, r.perByte(), p99))
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(table); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

// size formats bytes.
func size(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f kB", float64(n)/1e3)
}

// shortly formats a duration.
func shortly(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}

// thousands formats a number with commas.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
