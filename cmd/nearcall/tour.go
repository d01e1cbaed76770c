package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/spf13/cobra"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/nearcall/nearcall"
)

func tourCommand() *cobra.Command {
	var budget time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "tour", Short: "call one service by every path, with gRPC beside it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if budget <= 0 {
				return usageError(fmt.Sprintf("-time %v leaves no time to measure", budget))
			}
			r, err := wholeTour(c.Context(), budget, c.ErrOrStderr())
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeJSON(c.OutOrStdout(), r)
			default:
				r.writeSummary(c.OutOrStdout())
			}
			return nil
		},
	}
	c.Flags().DurationVar(&budget, "time", 12*time.Second, "how long to measure; the longer, the steadier the figures")
	c.Flags().BoolVar(&asJSON, "json", false, "print every kind of call on every path, with percentiles, as JSON")
	return c
}

// wholeTour measures all paths: those within the process, then those to a second process. It
// leaves out what the system does not support. It prints what it is doing to w, one line per kind of call.
func wholeTour(ctx context.Context, budget time.Duration, w io.Writer) (r report, err error) {
	r = newReport()
	from := 0.0
	for i, s := range stretches {
		if s.missing != nil {
			if err := s.missing(); err != nil {
				r.LeftOut = append(r.LeftOut, fmt.Sprintf("%s, and what is compared with it: %v", s.paths[0].name, err))
				continue
			}
		}
		t := tour{stretch: s, service: service{}, calls: calls, budget: time.Duration(s.share * float64(budget)), rounds: rounds}
		rows, err := t.run(ctx, func(call string, done float64) {
			fmt.Fprintf(w, "%3.0f %%  %s\n", 100*(from+s.share*done), call)
		})
		if err != nil {
			return report{}, err
		}
		from += s.share
		if i == 0 {
			r.Rows = rows
		} else {
			r.Processes = append(r.Processes, rows...)
		}
	}
	return r, nil
}

// rounds is how often each path is measured in a pair with gRPC. Figures are medians.
const rounds = 5

// A tour calls one service by several paths, alternating each with the baseline.
type tour struct {
	stretch
	service testpb.TestServiceServer
	calls   []call
	budget  time.Duration
	rounds  int
}

// run measures every call over every path. It returns the rows call by call. For each call the
// baseline comes first. It says which call it measures next, and which share is done.
func (t *tour) run(ctx context.Context, say func(call string, done float64)) (rows []row, err error) {
	opened := make([]connection, 0, len(t.paths)+1)
	defer func() {
		for _, c := range opened {
			err = errors.Join(err, c.close())
		}
	}()
	for _, path := range t.all() {
		c, err := path.open(t.service)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.name, err)
		}
		c.path = path.name
		opened = append(opened, c)
	}
	for i, call := range t.calls {
		say(call.name, float64(i)/float64(len(t.calls)))
		some, err := t.compare(ctx, call, opened)
		if err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// warmUp is the length of the first round, as a share of a full round. The first round is not
// counted.
const warmUp = 0.25

// compare measures one call over all connections, of which the first is the baseline.
func (t *tour) compare(ctx context.Context, call call, conns []connection) (rows []row, err error) {
	lanes := make([]*lane, len(conns))
	for i, c := range conns {
		if lanes[i], err = newLane(c, call); err != nil {
			return nil, err
		}
	}
	// A round measures every path but the baseline once, each in a pair with the baseline.
	slots := float64(len(t.calls)*len(t.paths)*2) * (float64(t.rounds) + warmUp)
	length := time.Duration(float64(t.budget) / slots)
	base, others := lanes[0], lanes[1:]
	for round := range t.rounds + 1 {
		for i, l := range others {
			pair, d := []*lane{l, base}, length
			if (round+i)%2 == 0 { // alternate which goes first
				pair = []*lane{base, l}
			}
			if round == 0 {
				d = time.Duration(warmUp * float64(length))
			}
			for _, one := range pair {
				if err := one.measure(ctx, d); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", one.path, call.name, err)
				}
			}
			if round == 0 {
				l.reset()
				base.reset()
				continue
			}
			l.ratios = append(l.ratios, l.rates[len(l.rates)-1]/base.rates[len(base.rates)-1])
		}
	}
	for _, l := range lanes {
		rows = append(rows, l.row())
	}
	return rows, nil
}

// A lane is one kind of call over one connection, and its measurements.
type lane struct {
	path, call    string
	do            func() error
	times         *hdrhistogram.Histogram // of single calls, in nanoseconds
	rates, ratios []float64               // calls per second, and how often those of the baseline, in each round; the baseline has no ratios
}

func newLane(c connection, k call) (*lane, error) {
	do, err := k.open(c.ctx, c.client)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", c.path, k.name, err)
	}
	return &lane{path: c.path, call: k.name, do: do, times: hdrhistogram.New(1, time.Minute.Nanoseconds(), 3)}, nil
}

// row returns the percentiles of all rounds, and the medians of their rates.
func (l *lane) row() row {
	return row{
		Path: l.path, Call: l.call, PerSecond: median(l.rates), TimesGRPC: cmp.Or(median(l.ratios), 1),
		P50: time.Duration(l.times.ValueAtQuantile(50)), P99: time.Duration(l.times.ValueAtQuantile(99)),
	}
}

// reset forgets what was measured.
func (l *lane) reset() {
	l.times.Reset()
	l.rates = nil
}

var started = time.Now()

// now returns the time since a fixed moment, at the best resolution the system has. Windows has
// another clock for it.
var now = func() time.Duration { return time.Since(started) }

// measure makes calls for some time, and at least one, and times each. Times include one reading of the
// clock. Those of more than a minute count as a minute.
func (l *lane) measure(ctx context.Context, length time.Duration) error {
	runtime.GC() // so that this lane does not pay for the garbage of the previous one
	start := now()
	for n, before := 1, start; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.do(); err != nil {
			return err
		}
		after := now()
		_ = l.times.RecordValue(min((after - before).Nanoseconds(), l.times.HighestTrackableValue()))
		if elapsed := after - start; elapsed >= length {
			l.rates = append(l.rates, float64(n)/max(elapsed, 1).Seconds())
			return nil
		}
		before = after
	}
}

// median returns the median of values, the lower of two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[(len(values)-1)/2]
}

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
