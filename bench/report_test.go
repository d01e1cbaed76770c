package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// invented returns a report of all rows and rivals, with figures from the fastest to the
// slowest that writers must format.
func invented() *Report { return inventedOf(inProcess) }

func inventedOf(table Table) *Report {
	r := &Report{
		Table: table, Machine: `AT&T "6300" <8086>, 1 cores`, Date: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC),
		Pairs: 7, Time: 120 * time.Millisecond, Parked: 100, Clock: 31,
	}
	ratio := 0.003
	for _, row := range table.Rows {
		for _, rival := range table.Rivals {
			if !rival.Takes(row) {
				continue
			}
			ns := 1234.56 * ratio
			v := Result{Row: row, Rival: rival, Ns: ns, Bytes: 96.04, Allocs: 2.004, Ratio: ratio, CPU: 2 * ns, CPURatio: ratio / 2, Latency: Latency{ns, ns + 1, ns + 2, 1e9}}
			if rival.Name == table.Baseline {
				v.Ratio, v.CPURatio = 1, 1
			}
			r.Results = append(r.Results, v)
			ratio *= 1.15
		}
	}
	return r
}

func written(t *testing.T, write func(io.Writer, *Report) error, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRanks(t *testing.T) {
	results := func(ratios ...any) []Result {
		var all []Result
		for i := 0; i < len(ratios); i += 2 {
			rival := inProcess.Rivals[inProcess.place(Rival{Name: ratios[i].(string)})]
			all = append(all, Result{Row: inProcess.Rows[0], Rival: rival, Ratio: ratios[i+1].(float64)})
		}
		return all
	}
	for _, c := range []struct {
		results      []Result
		rank, behind string
	}{
		{results("nearcall", .3, "grpchan", 1., "bufconn", 4.), "1 of 3", ""},
		{results("nearcall", .3, "connect-inprocess", .25, "grpchan", 1.), "2 of 3", "in-process, unary-32B: 2 of 3, behind connect-inprocess (0.25 to 0.30)"},
		{results("nearcall", 1., "grpchan", 1.), "1 of 2", ""},
		{results("nearcall", .3, "nearcall-inline", .2, "connect-nearcall", .2, "direct", .1, "grpchan", 1.), "1 of 2", ""},
		{results("nearcall-inline", .2, "grpchan", 1.), "", ""},
	} {
		r := &Report{Table: inProcess, Results: c.results}
		k, ok := r.rank(c.results)
		if ok != (c.rank != "") || ok && k.String() != c.rank {
			t.Errorf("rank is %v, %t, want %q", k, ok, c.rank)
		}
		if got := strings.Join(r.behind(), "; "); got != c.behind {
			t.Errorf("behind is %q, want %q", got, c.behind)
		}
	}
}

func TestWritersReturnErrors(t *testing.T) {
	for _, write := range []func(io.Writer, *Report) error{writeMarkdown, writeCSV, writeSVG, writeShortSVG} {
		if err := write(full{}, invented()); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("got %v", err)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestCSV(t *testing.T) {
	r := invented()
	lines, err := csv.NewReader(strings.NewReader(written(t, writeCSV, r))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const head = "row,kind,context,callers,bytes,messages,rival,ns_per_op,ratio_to_grpchan,p50_ns,p90_ns,p95_ns,p99_ns," +
		"bytes_per_op,allocs_per_op,pairs,measurement_ns,clock_ns,date,machine"
	if got := strings.Join(lines[0], ","); got != head {
		t.Errorf("columns are\n%s\nwant\n%s", got, head)
	}
	if len(lines) != 1+len(r.Results) {
		t.Fatalf("%d lines for %d results", len(lines), len(r.Results))
	}
	for i, line := range lines[1:] {
		for column, cell := range line {
			name := lines[0][column]
			switch name {
			case "row", "kind", "context", "rival", "date", "machine":
				continue
			}
			_, err := strconv.ParseFloat(cell, 64)
			if empty := strings.HasPrefix(name, "p") && strings.HasSuffix(name, "_ns") && !r.Results[i].Row.Kind.Unary; (err != nil) != empty {
				t.Errorf("%s, %s: %s is %q", line[0], line[6], name, cell)
			}
		}
	}
	const first = `unary-32B,unary,Background,1,32,1,nearcall,3.7,0.0030,4,5,6,1000000000,96.0,2.00,7,120000000,31,2026-02-03,AT&T "6300" <8086>, 1 cores`
	if got := strings.Join(lines[1], ","); got != first {
		t.Errorf("the first line is\n%s\nwant\n%s", got, first)
	}
}

func TestMarkdown(t *testing.T) {
	r := invented()
	text := written(t, writeMarkdown, r)
	tables := 0
	var columns int
	var inTable bool
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			inTable = false
			continue
		}
		n := strings.Count(line, "|") - 1
		if !inTable {
			tables++
			columns, inTable = n, true
		}
		if n != columns {
			t.Errorf("%d columns, not %d, in %s", n, columns, line)
		}
	}
	if tables != 2+len(inProcess.Rows) {
		t.Errorf("%d tables, want one of all rows, one of ranks and one for each of %d", tables, len(inProcess.Rows))
	}
	cells := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, want := range []string{
		"2026-02-03; medians of 7 pairs of 120ms, beside 100 parked goroutines\n",
		"| row | context | nearcall | nearcall-inline | nearcall-shared | connect-nearcall | connect-inprocess | grpchan | bufconn | tcp | direct | direct-clone |",
		"| unary, 32 B | Background | 0.003 (3.7 ns) |",
		"### Rank of nearcall in process ",
		"| unary-32B | 1 of 5 | |",
		"### unary, 1 MB, Background context (`unary-1MB`)",
		"| rival | ns/op | ratio | p50 ns | p90 ns | p95 ns | p99 ns | B/op | allocs/op |",
		"| nearcall | 3.7 | 0.003 | 4 | 5 | 6 | 1000000000 | 96 | 2 |",
		"### server stream, 100 × 32 B, cancellable context (`server-stream-100x32B`)",
		"| rival | ns/op | ratio | B/op | allocs/op |",
	} {
		if !strings.Contains(cells(text), cells(want)) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// TestMarkdownOfLoops checks that the table says which rivals run on a loop, and on which
// kind.
func TestMarkdownOfLoops(t *testing.T) {
	r := inventedOf(onLoop)
	cells := strings.Join(strings.Fields(written(t, writeMarkdown, r)), " ")
	for _, want := range []string{
		"### Time of an operation on an event loop, compared with grpchan ",
		"| row | context | nearcall-loop | nearcall-coroutines | nearcall | grpchan |",
		"| unary, 32 B | Background | 0.003 (3.7 ns) |",
		"and moves less. - nearcall-loop: services registered with srv.OnLoop(loop.New()): ",
		" - nearcall-coroutines: ", " - nearcall: on no loop", " - grpchan: on no loop",
		"go-inprocgrpc, which has an event loop as well, was not to be had when this was measured.",
		"| rival | ns/op | ratio | p50 ns | p90 ns | p95 ns | p99 ns | B/op | allocs/op |",
	} {
		if !strings.Contains(cells, want) {
			t.Errorf("there is no %q in\n%s", want, cells)
		}
	}
	r.Results = r.Results[:1]
	if text := written(t, writeMarkdown, r); strings.Contains(text, "\n- grpchan: ") || !strings.Contains(text, "\n- nearcall-loop: ") {
		t.Errorf("it is not those who were measured that are explained:\n%s", text)
	}
}

func TestMarkdownOfTwoProcesses(t *testing.T) {
	text := written(t, writeMarkdown, inventedOf(peerTables()[0]))
	cells := strings.Join(strings.Fields(text), " ")
	for _, want := range []string{
		"medians of 7 pairs of 120ms, beside 100 parked goroutines in each of two processes ",
		"### Time of an operation over unix sockets, compared with grpc-go ",
		"| row | context | nearcall | grpc-go | drpc | ttrpc | connect-nearcall | connect-http2 | connect-http1 | raw | protobuf |",
		"| empty call | cancellable | 0.003 (3.7 ns) | 1.00 (4.3 ns) |",
		"### Operations a second over unix sockets ",
		"| empty call | cancellable | 270001728 | 234784111 |",
		"### Processor time of an operation over unix sockets, both processes together ",
		"| empty call | cancellable | 0.002 (7.4 ns) |",
		"¹ ttrpc has no messages of more than 4 MB. ² nearcall and grpc-go alone carry FlatBuffers here. ³ raw has no streams. ⁴ protobuf has no streams. ⁵ ttrpc answers client streams with a unary reply, which needs special code. ⁶ connect-http1 has no streams both ways. ⁷ nearcall and grpc-go alone are measured with 10,000 streams. ⁸ raw has one caller. ⁹ protobuf has one caller. Times move",
		"- drpc: a connection has one call at a time",
		"| rival | ns/op | ratio | p50 ns | p90 ns | p95 ns | p99 ns | B/op | allocs/op | CPU ns/op | CPU ratio | op/s |",
		"| nearcall | 3.7 | 0.003 | 4 | 5 | 6 | 1000000000 | 96 | 2 | 7.4 | 0.002 | 270001728 |",
	} {
		if !strings.Contains(cells, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if streams := strings.Contains(line, "server stream") && strings.Contains(line, "100 × 32 B"); streams && !strings.HasSuffix(strings.Join(strings.Fields(line), " "), "| ³ | ⁴ |") {
			t.Errorf("raw's cell of a stream is not empty: %s", line)
		}
		if strings.HasPrefix(line, "| unary, 10 MB") && !strings.Contains(line, " ¹ ") {
			t.Errorf("ttrpc's cell of 10 MB is not empty: %s", line)
		}
	}
}

func TestCSVOfTwoProcesses(t *testing.T) {
	lines, err := csv.NewReader(strings.NewReader(written(t, writeCSV, inventedOf(peerTables()[1])))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const head = "row,kind,context,callers,bytes,messages,rival,ns_per_op,ratio_to_grpc-go,p50_ns,p90_ns,p95_ns,p99_ns," +
		"bytes_per_op,allocs_per_op,cpu_ns_per_op,cpu_ratio_to_grpc-go,line_ns,pairs,measurement_ns,clock_ns,date,machine"
	if got := strings.Join(lines[0], ","); got != head {
		t.Errorf("columns are\n%s\nwant\n%s", got, head)
	}
	const first = "empty,empty call,cancellable,1,0,1,nearcall,3.7,0.0030,4,5,6,1000000000,96.0,2.00,7,0.0015,,7"
	if got := strings.Join(lines[1], ","); !strings.HasPrefix(got, first) {
		t.Errorf("the first line is\n%s\nwant\n%s", got, first)
	}
}

func TestReportsOfSharedMemory(t *testing.T) {
	r := inventedOf(overSharedMemory(0))
	r.Line = 187
	text := strings.Join(strings.Fields(written(t, writeMarkdown, r)), " ")
	for _, want := range []string{
		"in each of two processes, between which a cache line that both watch goes there and back in 187ns ",
		"### Time of an operation over shared memory, compared with grpc-go ",
		"| row | context | nearcall | nearcall-upgraded | grpc-go | raw | protobuf | shmipc-go | watched-line | one-copy | two-copies | three-copies |",
		"- grpc-go: over a unix socket",
		"copies are of messages of 100 KB and more.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	lines, err := csv.NewReader(strings.NewReader(written(t, writeCSV, r))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if at := slices.Index(lines[0], "line_ns"); at < 0 || lines[1][at] != "187" {
		t.Errorf("the line is not in %q, %q", lines[0], lines[1])
	}
}

func TestRaisedNumbers(t *testing.T) {
	if got := raised(1204); got != "¹²⁰⁴" {
		t.Errorf("got %s", got)
	}
}

// TestSVG parses the picture as XML, and checks that everything is inside it and nothing
// overlaps.
func TestSVG(t *testing.T) {
	few := invented()
	few.Results = slices.DeleteFunc(few.Results, func(r Result) bool { return r.Rival.Name == inProcess.Baseline || r.Row.Callers > 1 })
	one := invented()
	one.Results = one.Results[:1]
	for name, r := range map[string]*Report{"all": invented(), "without the baseline": few, "one result": one, "none": {}, "on a loop": inventedOf(onLoop), "two processes": inventedOf(peerTables()[0]), "shared memory": inventedOf(overSharedMemory(0))} {
		t.Run(name, func(t *testing.T) {
			text := written(t, writeSVG, r)
			drawn := parseSVG(t, text, r.title())
			wantBars := len(bars(r.Results, r.Table.Baseline))
			got := 0
			for _, b := range drawn.boxes {
				if b.left < 0 || b.top < 0 || b.right > picWidth || b.bottom > drawn.height {
					t.Errorf("%q is beyond the edge: %+v", b.what, b)
				}
				if b.what == "bar" {
					got++
				}
			}
			if legend := max(0, len(r.rivals())-1); name == "all" && got != wantBars+legend {
				t.Errorf("%d bars, want %d and %d in the legend", got, wantBars, legend)
			}
			for i, a := range drawn.boxes {
				for _, b := range drawn.boxes[:i] {
					if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
						t.Errorf("%+v and %+v overlap", a, b)
					}
				}
			}
			for class := range drawn.classes {
				if class != "" && strings.Count(text, "."+class+" {") == 0 {
					t.Errorf("class %s has no style", class)
				}
			}
		})
	}
}

type svgBox struct {
	what                     string
	left, top, right, bottom float64
}

type svgDrawn struct {
	height  float64
	boxes   []svgBox
	classes map[string]bool
}

// parseSVG returns the positions of bars and texts, as far as they can be computed without
// the font.
func parseSVG(t *testing.T, text, title string) svgDrawn {
	t.Helper()
	type element struct {
		XMLName xml.Name
		Class   string  `xml:"class,attr"`
		X       float64 `xml:"x,attr"`
		Y       float64 `xml:"y,attr"`
		W       float64 `xml:"width,attr"`
		H       float64 `xml:"height,attr"`
		Text    string  `xml:",chardata"`
	}
	var svg struct {
		XMLName  xml.Name  `xml:"http://www.w3.org/2000/svg svg"`
		Height   float64   `xml:"height,attr"`
		Title    string    `xml:"title"`
		Elements []element `xml:",any"`
	}
	dec := xml.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&svg); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if _, err := dec.Token(); err != nil && err != io.EOF {
		t.Error(err)
	}
	if svg.Title != title {
		t.Errorf("the title is %q", svg.Title)
	}
	if regexp.MustCompile(`NaN|Inf|%!`).MatchString(text) {
		t.Errorf("there are numbers that are none in\n%s", text)
	}
	drawn := svgDrawn{height: svg.Height, classes: make(map[string]bool)}
	for _, e := range svg.Elements {
		for class := range strings.FieldsSeq(e.Class) {
			drawn.classes[class] = true
		}
		switch {
		case e.XMLName.Local == "rect" && e.Class != "ground":
			drawn.boxes = append(drawn.boxes, svgBox{"bar", e.X, e.Y, e.X + e.W, e.Y + e.H})
		case e.XMLName.Local == "text":
			width, left := textWidth(e.Text), e.X
			switch {
			case strings.Contains(e.Class, "end"):
				left -= width
			case strings.Contains(e.Class, "middle"):
				left -= width / 2
			}
			drawn.boxes = append(drawn.boxes, svgBox{e.Text, left, e.Y - 9, left + width, e.Y + 2})
		}
	}
	return drawn
}

func TestLongNamesAreWrapped(t *testing.T) {
	r := invented()
	r.Machine = strings.Repeat("Processor of a very long name ", 12)
	if drawn := parseSVG(t, written(t, writeSVG, r), r.title()); !slices.ContainsFunc(drawn.boxes, func(b svgBox) bool {
		return strings.HasPrefix(b.what, "Processor") || strings.HasPrefix(b.what, "name")
	}) || slices.ContainsFunc(drawn.boxes, func(b svgBox) bool { return b.right > picWidth }) {
		t.Errorf("texts are %+v", drawn.boxes)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{nanoseconds(0), "0 ns"},
		{nanoseconds(0.62), "0.6 ns"},
		{nanoseconds(41.23), "41.2 ns"},
		{nanoseconds(412.3), "412 ns"},
		{nanoseconds(999.7), "1.00 µs"},
		{nanoseconds(1423), "1.42 µs"},
		{nanoseconds(9999), "10.0 µs"},
		{nanoseconds(123_456), "123 µs"},
		{nanoseconds(1.5e6), "1.50 ms"},
		{nanoseconds(3.2e12), "3200 s"},
		{ratio(0.0312), "0.031"},
		{ratio(0.0999), "0.10"},
		{ratio(1), "1.00"},
		{ratio(9.996), "10.0"},
		{ratio(31.26), "31.3"},
		{ratio(412.6), "413"},
		{number(12.04), "12"},
		{number(12.06), "12.1"},
		{number(1234.5), "1234"},
		{size(383), "383 B"},
		{size(1 << 10), "1 KB"},
		{size(1<<10 + 1), "1025 B"},
		{size(1 << 20), "1 MB"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) || median([]float64{3, 1}) != 2 || median([]float64{3, 1, 9}) != 3 {
		t.Error("median is wrong")
	}
}
