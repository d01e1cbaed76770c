package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A summaryPath is a path and its label in the summary.
type summaryPath struct{ label, path string }

// The summary shows a small call and a stream over the paths that a program can choose from,
// in groups by where the service runs. grpc-go's paths come first.
var (
	smallCall, streamCall = calls[0].name, calls[1].name

	near          = summaryPath{"nearcall", paths[0].name}
	nearUnix      = summaryPath{"nearcall", secondUnix}
	nearShm       = summaryPath{"nearcall, shared memory", secondShm}
	nearTCP       = summaryPath{"nearcall", secondTCP}
	nearWS        = summaryPath{"nearcall, WebSocket", secondWS}
	summaryGroups = []struct {
		to    string
		paths []summaryPath
	}{
		{"within a process", []summaryPath{{"grpc-go, bufconn", grpcBufconn.name}, {"grpc-go, TCP", grpcTCP.name}, near}},
		{"to a second process, over a unix socket", []summaryPath{{"grpc-go", secondUnixGRPC}, nearUnix, nearShm}},
		{"to a second process, over TCP", []summaryPath{{"grpc-go", secondTCPGRPC}, nearTCP, nearWS}},
	}
)

// writeSummary prints a short report: bars and a conclusion.
func (r report) writeSummary(w io.Writer) error {
	text := r.heading() + "\n" + r.warning() + r.bars(smallCall) + r.bars(streamCall) + r.conclusion() + r.leftOut() +
		"-all prints every kind of call on every path, with percentiles.\n"
	_, err := io.WriteString(w, text)
	return err
}

// warning returns a warning if other programs were busy, and otherwise nothing.
func (r report) warning() string {
	if r.OtherLoad < busyShare {
		return ""
	}
	return fmt.Sprintf("Other programs, or a limit on this one, took %.0f %% of the processors meanwhile. The figures can mislead:\n"+
		"run the tour again when the machine is quiet.\n\n", 100*r.OtherLoad)
}

// find returns the row of a call over a path, and whether there is one.
func (r report) find(path, call string) (row, bool) {
	for _, rows := range [][]row{r.Rows, r.Processes} {
		for _, row := range rows {
			if row.Path == path && row.Call == call {
				return row, true
			}
		}
	}
	return row{}, false
}

// barWidth is the width of the longest bar of a group, in characters.
const barWidth = 32

// bars draws the median times of a call, group by group.
func (r report) bars(call string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: median time, and calls a second against grpc-go's\n\n", call)
	for _, g := range summaryGroups {
		var lines []func(longest time.Duration)
		var longest time.Duration
		for _, p := range g.paths {
			if row, ok := r.find(p.path, call); ok {
				longest = max(longest, row.P50)
				lines = append(lines, func(longest time.Duration) {
					fmt.Fprintf(&b, "    %-24s %8s  %5s  %s\n", p.label, formatTime(row.P50), formatRatio(row.TimesGRPC)+"×", bar(row.P50, longest))
				})
			}
		}
		if len(lines) == 0 { // the system lacks them
			continue
		}
		fmt.Fprintf(&b, "  %s\n", g.to)
		for _, line := range lines {
			line(longest)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// bar draws a time in eighths of a character, at least one.
func bar(d, longest time.Duration) string {
	eighths := max(int(8*barWidth*d/max(longest, 1)), 1)
	s := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		s += string(rune('█' + 8 - rest)) // narrower blocks follow U+2588
	}
	return s
}

// conclusion returns a sentence that says what the bars show.
func (r report) conclusion() string {
	var b strings.Builder
	say := func(p summaryPath, where string) {
		small, ok := r.find(p.path, smallCall)
		stream, both := r.find(p.path, streamCall)
		if ok && both {
			fmt.Fprintf(&b, "%s a small call takes %s. nearcall makes %s× as many a second as grpc-go, and %s× as many streams.\n",
				where, formatTime(small.P50), formatRatio(small.TimesGRPC), formatRatio(stream.TimesGRPC))
		}
	}
	say(near, "Within a process")
	say(nearShm, "Through shared memory")
	say(nearUnix, "Over a unix socket")
	say(nearTCP, "Over TCP")
	say(nearWS, "Over a WebSocket")
	return b.String() + "\n"
}
