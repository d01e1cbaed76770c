// Package nearprom shows the figures of package metrics to Prometheus.
package nearprom

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/export/internal/figures"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

// NewCollector returns a collector of the figures of this process and of calls, which may be nil. The
// names are those of OpenTelemetry and gRPC, such as grpc_server_call_started_total with the label
// grpc_method, as Prometheus spells them.
func NewCollector(calls *metrics.Calls) prometheus.Collector {
	c := &collector{calls: calls}
	for _, f := range figures.All {
		name, labels := spell(f.Name), make([]string, len(f.Labels))
		if f.Unit == "By" {
			name += "_bytes"
		}
		if f.Grows {
			name += "_total"
		}
		for i, l := range f.Labels {
			labels[i] = spell(l)
		}
		c.descs = append(c.descs, prometheus.NewDesc(name, f.Help, labels, nil))
	}
	return c
}

func spell(name string) string { return strings.ReplaceAll(name, ".", "_") }

type collector struct {
	calls *metrics.Calls
	descs []*prometheus.Desc // of the figures
}

var duration = prometheus.NewDesc("grpc_server_call_duration_seconds", "How long the calls took that the server has ended.", []string{"grpc_method"}, nil)

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	to <- duration
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.calls.Read()
	for i, f := range figures.All {
		kind := prometheus.GaugeValue
		if f.Grows {
			kind = prometheus.CounterValue
		}
		f.Read(s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(c.descs[i], kind, value, labels...)
		})
	}
	for _, m := range s.GetMethods() {
		n, buckets := cumulate(m.GetTimes())
		to <- prometheus.MustNewConstHistogram(duration, n, time.Duration(m.GetTotalNanoseconds()).Seconds(), buckets, figures.MethodOf(m))
	}
}

// The bounds of buckets are the powers of two from about a microsecond to a minute. They are bounds of
// package metrics' finer buckets, too.
const least, most = 10, 36

// cumulate returns how many calls have ended, and how many of them within each bound.
func cumulate(times []*metricspb.Bucket) (all uint64, within map[float64]uint64) {
	within = make(map[float64]uint64)
	for power := least; power <= most; power++ {
		bound := time.Duration(1) << power
		for ; len(times) > 0 && times[0].GetMostNanoseconds() <= int64(bound); times = times[1:] {
			all += times[0].GetCalls()
		}
		within[bound.Seconds()] = all
	}
	for _, b := range times {
		all += b.GetCalls()
	}
	return all, within
}
