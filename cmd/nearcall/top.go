package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/metrics/metricspb"
)

func topCommand() *cobra.Command {
	f, interval, tables := new(connFlags), seconds(time.Second), 0
	c := &cobra.Command{
		Use: "top TARGET", Short: "show what calls a server gets, by method, and its sessions, each second",
		Long: "The server must count its calls with package metrics, and register that: calls := metrics.NewCalls(),\n" +
			"the option nearcall.StatsHandler(calls), and calls.Register(srv). Times are those of calls that ended; the\n" +
			"time of a stream is that from its begin to its end. CALLS and ERRORS count since the server began to count.\n" +
			"SESSIONS are those of the server's process, since that started. Ctrl-C ends the command.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: f.complete(nil),
		RunE: func(c *cobra.Command, args []string) error {
			if tables < 0 {
				return usageError(fmt.Sprintf("-n %d: write a number of tables, or 0 for no end", tables))
			}
			limited, p, err := f.open(c.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.close()
			err = p.top(limited, time.Duration(interval), tables, c.OutOrStdout())
			if c.Context().Err() != nil {
				return nil // the usual end
			}
			return p.hint(err)
		},
	}
	f.add(c)
	c.Flags().Var(&interval, "interval", "`time` between two tables, as for -max-time")
	c.Flags().IntVarP(&tables, "tables", "n", 0, "end after this `number` of tables; 0 for no end")
	return c
}

// top prints a table after each interval, until ctx is done. If that is before the server's
// first answer, it returns an error.
func (p *remote) top(ctx context.Context, interval time.Duration, tables int, w io.Writer) error {
	client, live := metricspb.NewMetricsClient(p.conn), isTerminal(w)
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	var before *metricspb.Snapshot
	for n := 0; tables == 0 || n <= tables; n++ {
		now, err := client.Get(ctx, new(metricspb.GetRequest))
		if err != nil && before != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return noCounts(err)
		}
		if before != nil {
			var screen bytes.Buffer
			if live {
				_, _ = io.WriteString(unescaped(w), "\x1b[H\x1b[2J") // to the corner, and clear
			} else if n > 1 {
				screen.WriteString("\n")
			}
			printTraffic(&screen, p.target, traffic(before, now))
			printSessions(&screen, now)
			if _, err := w.Write(screen.Bytes()); err != nil {
				return err
			}
		}
		before = now
		if tables > 0 && n == tables {
			return nil
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// noCounts adds advice to the error of a server that does not count its calls.
func noCounts(err error) error {
	st := status.Convert(err)
	if st.Code() != codes.Unimplemented || strings.Contains(st.Message(), "nearcall server") {
		return err
	}
	return status.Errorf(st.Code(), "the server does not offer its counts (%s); its program can count calls with package "+
		"github.com/nearcall/nearcall/metrics: calls := metrics.NewCalls(), the option nearcall.StatsHandler(calls), and calls.Register(srv)",
		st.Message())
}

// A methodTraffic is the traffic of a method in an interval.
type methodTraffic struct {
	name          string
	begun, failed uint64  // since the server began to count
	calls, errors float64 // per second
	running       uint64
	p50, p99      time.Duration // 0 if no call ended
}

// traffic returns the traffic between two replies, the busiest method first.
func traffic(before, now *metricspb.Snapshot) (all []methodTraffic) {
	if before.GetSince() != now.GetSince() { // the server restarted, and counts from 0
		before = &metricspb.Snapshot{Now: now.GetSince()}
	}
	earlier := make(map[string]*metricspb.Method)
	for _, m := range before.GetMethods() {
		earlier[m.GetName()] = m
	}
	took := max(time.Duration(now.GetNow()-before.GetNow()), time.Millisecond).Seconds()
	for _, m := range now.GetMethods() {
		old := earlier[m.GetName()]
		t := methodTraffic{name: m.GetName(), begun: m.GetBegun(), calls: float64(m.GetBegun()-old.GetBegun()) / took}
		ended := uint64(0)
		for code, n := range m.GetEnded() {
			ended += n
			if codes.Code(code) != codes.OK {
				t.failed += n
				t.errors += float64(n-old.GetEnded()[code]) / took
			}
		}
		t.running = m.GetBegun() - ended
		t.p50, t.p99 = quantile(old, m, 0.5), quantile(old, m, 0.99)
		all = append(all, t)
	}
	slices.SortStableFunc(all, func(a, b methodTraffic) int {
		return cmp.Or(cmp.Compare(b.calls, a.calls), cmp.Compare(b.running, a.running), cmp.Compare(a.name, b.name))
	})
	return all
}

// quantile returns a time. The share q of the calls that now counts, and before does not, ended
// within that time.
func quantile(before, now *metricspb.Method, q float64) time.Duration {
	counted := make(map[int64]uint64)
	for _, b := range before.GetTimes() {
		counted[b.GetMostNanoseconds()] = b.GetCalls()
	}
	var total, below uint64
	for _, b := range now.GetTimes() {
		total += b.GetCalls() - counted[b.GetMostNanoseconds()]
	}
	for _, b := range now.GetTimes() {
		below += b.GetCalls() - counted[b.GetMostNanoseconds()]
		if total > 0 && float64(below) >= q*float64(total) {
			return time.Duration(b.GetMostNanoseconds())
		}
	}
	return 0
}

func printTraffic(w io.Writer, target string, all []methodTraffic) {
	const head = "METHOD"
	width := len(head)
	var sum methodTraffic
	for i := range all {
		if all[i].name == "" {
			all[i].name = "(methods that the server does not have)"
		}
		all[i].name = clean(strings.TrimPrefix(all[i].name, "/"))
		width = max(width, utf8.RuneCountInString(all[i].name))
		sum.begun, sum.failed = sum.begun+all[i].begun, sum.failed+all[i].failed
		sum.calls, sum.errors, sum.running = sum.calls+all[i].calls, sum.errors+all[i].errors, sum.running+all[i].running
	}
	fmt.Fprintf(w, "%s: %s calls/s, %s errors/s, %d running; in total %d calls, %d errors\n\n",
		target, frequency(sum.calls), frequency(sum.errors), sum.running, sum.begun, sum.failed)
	fmt.Fprintf(w, "%-*s %9s %9s %9s %9s %9s %9s %9s\n", width, head, "CALLS/S", "ERRORS/S", "RUNNING", "P50", "P99", "CALLS", "ERRORS")
	for _, m := range all {
		fmt.Fprintf(w, "%-*s %9s %9s %9d %9s %9s %9d %9d\n",
			width, m.name, frequency(m.calls), frequency(m.errors), m.running, brief(m.p50), brief(m.p99), m.begun, m.failed)
	}
}

// printSessions prints the sessions of the server's process, and what it knows of them.
func printSessions(w io.Writer, s *metricspb.Snapshot) {
	if len(s.GetSessions()) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-26s %9s %9s\n", "SESSIONS", "OPEN", "OPENED")
	for _, n := range s.GetSessions() {
		fmt.Fprintf(w, "%-26s %9d %9d\n", clean("as "+n.GetSide()+", "+n.GetPath()), n.GetOpen(), n.GetOpened())
	}
	for _, why := range s.GetNotNearer() {
		fmt.Fprintf(w, "%-36s %9d\n", clean("not nearer: "+why.GetReason()), why.GetConnections())
	}
	fmt.Fprintf(w, "%d transparent retries, %d by policy, %d reconnections\n", s.GetTransparentRetries(), s.GetPolicyRetries(), s.GetReconnections())
}

func frequency(perSecond float64) string {
	if perSecond > 0 && perSecond < 10 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return fmt.Sprintf("%.0f", perSecond)
}

// brief returns d with three digits or so.
func brief(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	step := time.Duration(1)
	for d/step >= 1000 {
		step *= 10
	}
	return d.Round(step).String()
}
