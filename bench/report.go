package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A Report is the results of a table, and how they were measured.
type Report struct {
	Table   Table
	Machine string
	Date    time.Time
	Pairs   int
	Time    time.Duration // per measurement
	Parked  int           // goroutines that slept during measurements
	Clock   time.Duration // the cost of reading the clock
	Line    time.Duration // the round trip of a shared cache line; 0 if not measured
	Results []Result
}

// title returns the title of the table of times. That of the first table does not say
// where calls go.
func (r *Report) title() string {
	where := ""
	if r.Table.Name != inProcess.Name {
		where = " " + r.Table.Title
	}
	return "Time of an operation" + where + ", compared with " + r.Table.Baseline
}

// machine describes the machine in a line.
func machine() string {
	return fmt.Sprintf("%s, %d cores, GOMAXPROCS %d, %s %s/%s",
		cmp.Or(cpuModel(), "unknown CPU"), runtime.NumCPU(), runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (r *Report) header() string {
	where := ""
	if r.Table.Processes {
		where = " in each of two processes"
	}
	if r.Line > 0 {
		where += fmt.Sprintf(", between which a cache line that both watch goes there and back in %v", r.Line)
	}
	return fmt.Sprintf("%s, %s; medians of %d pairs of %v, beside %d parked goroutines%s",
		r.Machine, r.Date.Format(time.DateOnly), r.Pairs, r.Time, r.Parked, where)
}

// rows returns the results row by row.
func (r *Report) rows() [][]Result {
	var rows [][]Result
	for i, result := range r.Results {
		if i == 0 || result.Row.Name != r.Results[i-1].Row.Name {
			rows = append(rows, nil)
		}
		last := &rows[len(rows)-1]
		*last = append(*last, result)
	}
	return rows
}

// rivals returns the rivals that have a result, in the order of the table.
func (r *Report) rivals() []Rival {
	var rivals []Rival
	for _, result := range r.Results {
		if !slices.ContainsFunc(rivals, func(v Rival) bool { return v.Name == result.Rival.Name }) {
			rivals = append(rivals, result.Rival)
		}
	}
	slices.SortStableFunc(rivals, func(a, b Rival) int { return r.Table.place(a) - r.Table.place(b) })
	return rivals
}

// find returns the result of a rival.
func find(results []Result, rival string) (Result, bool) {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Rival.Name == rival })
	if i < 0 {
		return Result{}, false
	}
	return results[i], true
}

// A rank is nearcall's place in a row among the rivals that make calls. Lower bounds, and
// other ways to use nearcall, do not count.
type rank struct {
	place, of int
	ahead     []string // the rivals that take less time
}

func (k rank) String() string { return fmt.Sprintf("%d of %d", k.place, k.of) }

// rank returns the rank of the table's first rival in a row. It reports false if that rival
// was not measured.
func (r *Report) rank(results []Result) (rank, bool) {
	ours, ok := find(results, r.Table.Rivals[0].Name)
	k := rank{place: 1, of: 1}
	for _, v := range results {
		if v.Rival.Limit || strings.Contains(v.Rival.Name, "nearcall") {
			continue
		}
		k.of++
		if v.Ratio < ours.Ratio {
			k.place++
			k.ahead = append(k.ahead, fmt.Sprintf("%s (%s to %s)", v.Rival.Name, ratio(v.Ratio), ratio(ours.Ratio)))
		}
	}
	return k, ok
}

// behind lists the rows in which nearcall is not first.
func (r *Report) behind() []string {
	var rows []string
	for _, results := range r.rows() {
		if k, ok := r.rank(results); ok && k.place > 1 {
			rows = append(rows, fmt.Sprintf("%s, %s: %s, behind %s", r.Table.Name, results[0].Row.Name, k, strings.Join(k.ahead, ", ")))
		}
	}
	return rows
}

// A behindError says in which rows nearcall is not first.
type behindError []string

func (e behindError) Error() string {
	return "nearcall is not first in these rows:\n  " + strings.Join(e, "\n  ")
}

// An output is a file that a report goes to.
type output struct {
	path  string
	write func(io.Writer, *Report) error
	file  *os.File
}

// open ensures before the measurements that the file can be written. It does not
// truncate the file: the old content stays until there are new results.
func (o *output) open() (err error) {
	o.file, err = os.OpenFile(o.path, os.O_WRONLY|os.O_CREATE, 0o666)
	return err
}

func (o *output) finish(r *Report) error {
	var b strings.Builder
	if err := o.write(&b, r); err != nil {
		return err
	}
	if err := o.file.Truncate(0); err != nil {
		return err
	}
	_, err := io.WriteString(o.file, b.String())
	return err
}
