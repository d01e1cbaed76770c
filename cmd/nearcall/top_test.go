package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// counting serves a shop that counts its calls.
func counting(t *testing.T) (target string) {
	t.Helper()
	calls := metrics.NewCalls()
	return serveNear(t, "tcp:127.0.0.1:0", func(srv server) {
		withPlainShop(srv)
		calls.Register(srv)
	}, nearcall.StatsHandler(calls))
}

// A table is what top writes at a time, if calls were made.
var table = regexp.MustCompile(`^\n?tcp:\S+: [0-9.]+ calls/s, [0-9.]+ errors/s, \d+ running; in total \d+ calls, \d+ errors

METHOD +CALLS/S  ERRORS/S   RUNNING       P50       P99     CALLS    ERRORS
(?s:.*)nearcall\.examples\.orders\.Orders/Place +[0-9.]+ +[0-9.]+ +\d+ +[0-9.]+[mµn]?s +[0-9.]+[mµn]?s +\d+ +0
(?s:.*)as server, tcp +[0-9]+ +[0-9]+
`)

// A reader interrupts top when it has written two tables.
type reader struct {
	bytes.Buffer
	tables    int
	interrupt func()
}

func (r *reader) Write(b []byte) (int, error) {
	if table.Match(b) {
		if r.tables++; r.tables == 2 {
			r.interrupt()
		}
	}
	return r.Buffer.Write(b)
}

// TestTopPrintsTraffic checks the tables while calls are made. They come one after the
// other if the output is no terminal.
func TestTopPrintsTraffic(t *testing.T) {
	target := counting(t)
	conn, err := nearcall.NewClient(target)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		client := orderspb.NewOrdersClient(conn)
		for ctx.Err() == nil {
			_, _ = client.Place(ctx, &orderspb.PlaceRequest{Item: "tea"})
			_ = conn.Invoke(ctx, "/not/there", new(orderspb.Order), new(orderspb.Order))
		}
	}()
	var errs bytes.Buffer
	limit, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	r := &reader{interrupt: interrupt}
	code := run(limit, []string{"top", "-interval", "0.1", target}, stdio{nil, r, &errs})
	two := succeeds(t, "top", "-interval", "0.1", "-n", "2", target)
	stop()
	<-ended
	got := r.String()
	if code != exitOK || r.tables < 2 {
		t.Errorf("exit code %d, %s; it prints\n%s", code, errs.String(), got)
	}
	if n := strings.Count(two, "METHOD "); n != 2 {
		t.Errorf("with -n 2 it prints %d tables:\n%s", n, two)
	}
	if strings.Contains(got, "metrics.v1") || strings.Contains(got, "\x1b") {
		t.Errorf("its own calls or control characters are in\n%q", got)
	}
}

func TestTopEndsWithoutAnErrorWhenInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var errs bytes.Buffer
	code := run(ctx, []string{"top", "-interval", "10ms", counting(t)}, stdio{nil, &interrupting{interrupt: interrupt}, &errs})
	if code != exitOK || errs.Len() > 0 {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
}

// An interrupting writer calls interrupt at its second write.
type interrupting struct {
	writes    int
	interrupt func()
}

func (w *interrupting) Write(b []byte) (int, error) {
	if w.writes++; w.writes == 2 {
		w.interrupt()
	}
	return io.Discard.Write(b)
}

func TestTopNeedsCounts(t *testing.T) {
	const says = "the server does not offer its counts (unknown service nearcall.metrics.v1.Metrics); its program can count calls with package github.com/nearcall/nearcall/metrics: " +
		"calls := metrics.NewCalls(), the option nearcall.StatsHandler(calls), and calls.Register(srv)"
	fails(t, 64+12, says, "top", onOne(t))
	fails(t, 64+12, says, "top", serveFar(t, withShop))
	fails(t, exitUsage, "write a number of seconds above 0", "top", "-interval", "0", "x")
	fails(t, exitUsage, "-n -1", "top", "-n", "-1", "x")
}

func TestTopFailsIfTheServerDoesNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fails(t, 64+4, "DeadlineExceeded", "top", "-max-time", "100ms", "tcp:"+silent.Addr().String())
}

func TestTrafficIsTheDifference(t *testing.T) {
	const second = int64(time.Second)
	bucket := func(most time.Duration, calls uint64) *metricspb.Bucket {
		return &metricspb.Bucket{MostNanoseconds: int64(most), Calls: calls}
	}
	before := &metricspb.Snapshot{Since: 1, Now: 10 * second, Methods: []*metricspb.Method{
		{Name: "/a/A", Begun: 100, Ended: map[uint32]uint64{0: 100}, Times: []*metricspb.Bucket{bucket(time.Second, 100)}},
		{Name: "/b/B", Begun: 7, Ended: map[uint32]uint64{0: 5}},
	}}
	now := &metricspb.Snapshot{Since: 1, Now: 12 * second, Methods: []*metricspb.Method{
		{Name: "", Begun: 1, Ended: map[uint32]uint64{12: 1}, Times: []*metricspb.Bucket{bucket(time.Microsecond, 1)}},
		{Name: "/a/A", Begun: 301, Ended: map[uint32]uint64{0: 290, 5: 10}, Times: []*metricspb.Bucket{bucket(time.Millisecond, 190), bucket(time.Second, 105), bucket(2*time.Second, 5)}},
		{Name: "/b/B", Begun: 7, Ended: map[uint32]uint64{0: 5}},
	}}
	all := traffic(before, now)
	want := []methodTraffic{
		{name: "/a/A", begun: 301, failed: 10, calls: 100.5, errors: 5, running: 1, p50: time.Millisecond, p99: 2 * time.Second},
		{name: "", begun: 1, failed: 1, calls: 0.5, errors: 0.5, p50: time.Microsecond, p99: time.Microsecond},
		{name: "/b/B", begun: 7, running: 2},
	}
	if len(all) != len(want) {
		t.Fatalf("the traffic is %+v", all)
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("%d: %+v, want %+v", i, all[i], want[i])
		}
	}
	var out bytes.Buffer
	printTraffic(&out, "unix:s", all)
	const table = `unix:s: 101 calls/s, 5.5 errors/s, 3 running; in total 309 calls, 11 errors

METHOD                                    CALLS/S  ERRORS/S   RUNNING       P50       P99     CALLS    ERRORS
a/A                                           100       5.0         1       1ms        2s       301        10
(methods that the server does not have)       0.5       0.5         0       1µs       1µs         1         1
b/B                                             0         0         2         -         -         7         0
`
	if out.String() != table {
		t.Errorf("it prints\n%s", out.String())
	}

	out.Reset()
	printSessions(&out, &metricspb.Snapshot{
		Sessions:           []*metricspb.Sessions{{Side: "client", Path: "shm", Open: 2, Opened: 14}, {Side: "server", Path: "grpc", Opened: 1}},
		NotNearer:          []*metricspb.NotNearer{{Reason: "no_memory", Connections: 3}},
		TransparentRetries: 4, PolicyRetries: 5, Reconnections: 6,
	})
	const sessions = `
SESSIONS                        OPEN    OPENED
as client, shm                     2        14
as server, grpc                    0         1
not nearer: no_memory                        3
4 transparent retries, 5 by policy, 6 reconnections
`
	if out.String() != sessions {
		t.Errorf("it prints\n%s", out.String())
	}

	// After a restart there is nothing to subtract.
	now.Since = 11 * second
	if all := traffic(before, now); math.Abs(all[0].calls-301) > 0.001 {
		t.Errorf("after a restart the traffic is %+v", all)
	}
}
