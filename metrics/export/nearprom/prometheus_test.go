package nearprom

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// Everything that is collected is described and has a name as Prometheus wants it. A method that
// clients invent has one series with all others.
func TestTheCollectorIsConsistent(t *testing.T) {
	calls := metrics.NewCalls()
	for _, name := range []string{"/a.B/C", "/\x1b[2J/\xff"} {
		ctx := calls.TagRPC(context.Background(), &stats.RPCTagInfo{FullMethodName: name})
		begin := time.Now()
		calls.HandleRPC(ctx, &stats.Begin{BeginTime: begin})
		calls.HandleRPC(ctx, &stats.End{BeginTime: begin, EndTime: begin.Add(3 * time.Millisecond)})
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(calls))
	shown, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]*dto.MetricFamily)
	for _, family := range shown {
		seen[family.GetName()] = family
		if counts := family.GetType() == dto.MetricType_COUNTER; counts != strings.HasSuffix(family.GetName(), "_total") {
			t.Errorf("%s is a %v", family.GetName(), family.GetType())
		}
	}
	for _, name := range []string{"nearcall_client_retries_total", "nearcall_client_reconnections_total", "nearcall_shared_memory_usage_bytes"} {
		if seen[name] == nil {
			t.Errorf("%s is not shown", name)
		}
	}
	took := seen["grpc_server_call_duration_seconds"].GetMetric()
	if len(took) != 1 || took[0].GetLabel()[0].GetValue() != "other" {
		t.Fatalf("the durations are %v", took)
	}
	if h := took[0].GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 0.006 {
		t.Errorf("two calls of 3 ms are %v", h)
	}
	for _, b := range took[0].GetHistogram().GetBucket() {
		if within := b.GetUpperBound() > 0.003; within != (b.GetCumulativeCount() == 2) {
			t.Errorf("calls of 3 ms: %v", b)
		}
	}
}

// Calls that took longer than the last bound are in the histogram's count.
func TestLongCallsAreCounted(t *testing.T) {
	all, within := cumulate([]*metricspb.Bucket{{MostNanoseconds: 1 << least, Calls: 1}, {MostNanoseconds: 1<<most + 1, Calls: 2}})
	if all != 3 || within[(1<<least*time.Nanosecond).Seconds()] != 1 || within[(1<<most*time.Nanosecond).Seconds()] != 1 {
		t.Errorf("%d calls, of which %v", all, within)
	}
}
