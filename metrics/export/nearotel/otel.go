// Package nearotel shows the figures of package metrics to OpenTelemetry.
package nearotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/export/internal/figures"
)

// Register makes the figures of this process and of calls, which may be nil, observable instruments of
// meter. Calls by method have the names and attributes of gRPC, such as grpc.server.call.started with
// grpc.method. OpenTelemetry has no observable histograms: for durations use the stats handler of
// otelgrpc.
func Register(meter metric.Meter, calls *metrics.Calls) (metric.Registration, error) {
	var all []metric.Float64Observable
	var instruments []metric.Observable
	for _, f := range figures.All {
		var o metric.Float64Observable
		var err error
		if f.Grows {
			o, err = meter.Float64ObservableCounter(f.Name, metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
		} else {
			o, err = meter.Float64ObservableUpDownCounter(f.Name, metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
		}
		if err != nil {
			return nil, err
		}
		all, instruments = append(all, o), append(instruments, o)
	}
	return meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := calls.Read()
		for i, f := range figures.All {
			f.Read(s, func(value float64, labels ...string) {
				attributes := make([]attribute.KeyValue, len(labels))
				for j, l := range labels {
					attributes[j] = attribute.String(f.Labels[j], l)
				}
				to.ObserveFloat64(all[i], value, metric.WithAttributes(attributes...))
			})
		}
		return nil
	}, instruments...)
}
