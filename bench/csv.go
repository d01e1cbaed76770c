package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"
)

// writeCSV writes a line for each result. Each line also contains the context of the
// measurement, so that files from several machines can be concatenated.
func writeCSV(w io.Writer, r *Report) error {
	head := []string{"row", "kind", "context", "callers", "bytes", "messages", "rival", "ns_per_op", "ratio_to_" + r.Table.Baseline}
	for _, p := range Percentiles {
		head = append(head, fmt.Sprintf("p%d_ns", p))
	}
	out := csv.NewWriter(w)
	head = append(head, "bytes_per_op", "allocs_per_op")
	if r.Table.Processes {
		head = append(head, "cpu_ns_per_op", "cpu_ratio_to_"+r.Table.Baseline, "line_ns")
	}
	_ = out.Write(append(head, "pairs", "measurement_ns", "clock_ns", "date", "machine"))
	for _, v := range r.Results {
		line := []string{
			v.Row.Name, v.Row.Kind.Name, v.Row.Context(), strconv.Itoa(max(v.Row.Callers, 1)), strconv.Itoa(v.Row.Size),
			strconv.Itoa(max(v.Row.Messages, 1)), v.Rival.Name, decimals(v.Ns, 1), decimals(v.Ratio, 4),
		}
		for _, ns := range v.Latency {
			cell := ""
			if v.Row.Kind.Unary {
				cell = decimals(ns, 0)
			}
			line = append(line, cell)
		}
		line = append(line, decimals(v.Bytes, 1), decimals(v.Allocs, 2))
		if r.Table.Processes {
			trip := ""
			if r.Line > 0 {
				trip = strconv.FormatInt(r.Line.Nanoseconds(), 10)
			}
			line = append(line, decimals(v.CPU, 0), decimals(v.CPURatio, 4), trip)
		}
		_ = out.Write(append(line, strconv.Itoa(r.Pairs),
			strconv.FormatInt(r.Time.Nanoseconds(), 10), strconv.FormatInt(r.Clock.Nanoseconds(), 10), r.Date.Format(time.DateOnly), r.Machine))
	}
	out.Flush()
	return out.Error()
}

func decimals(v float64, n int) string { return strconv.FormatFloat(v, 'f', n, 64) }
