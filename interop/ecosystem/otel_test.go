package ecosystem

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

// A telescope records OpenTelemetry's spans and metrics in memory.
type telescope struct {
	spans   *tracetest.SpanRecorder
	tracer  *sdktrace.TracerProvider
	metrics *sdkmetric.ManualReader
	meter   *sdkmetric.MeterProvider
}

func newTelescope() telescope {
	spans, metrics := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	return telescope{
		spans, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		metrics, sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics)),
	}
}

func (s telescope) options() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(s.tracer), otelgrpc.WithMeterProvider(s.meter),
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})),
	}
}

func (s telescope) program(shop *shop) program {
	return program{
		register:    registerShop(shop),
		serverStats: []stats.Handler{otelgrpc.NewServerHandler(s.options()...)},
		clientStats: []stats.Handler{otelgrpc.NewClientHandler(s.options()...)},
	}
}

// sorted returns a line for each span, in a fixed order. It omits the server's
// address, because bufconn's differs from nearcall's.
func (s telescope) sorted() []string {
	parents := map[trace.SpanID]string{}
	for _, span := range s.spans.Ended() {
		parents[span.SpanContext().SpanID()] = span.SpanKind().String()
	}
	var notes []string
	for _, span := range s.spans.Ended() {
		parent := "none"
		if span.Parent().IsValid() {
			parent = parents[span.Parent().SpanID()]
		}
		notes = append(notes, fmt.Sprintf("%s span %s: parent %s, remote %v, status %v %q, %s, %d events, %d links", span.SpanKind(), span.Name(),
			parent, span.Parent().IsRemote(), span.Status().Code, span.Status().Description,
			attributes(span.Attributes()), len(span.Events()), len(span.Links())))
	}
	slices.Sort(notes)
	return notes
}

func attributes(kvs []attribute.KeyValue) string {
	var list []string
	for _, kv := range kvs {
		value := kv.Value.String()
		if kv.Key == "server.address" || kv.Key == "server.port" {
			value = "somewhere"
		}
		list = append(list, fmt.Sprintf("%s=%s", kv.Key, value))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// durations returns the data points of the histograms of call durations.
func (s telescope) durations(t *testing.T) map[string][]metricdata.HistogramDataPoint[float64] {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	points := map[string][]metricdata.HistogramDataPoint[float64]{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			h, ok := m.Data.(metricdata.Histogram[float64])
			if !ok {
				t.Errorf("%s is a %T", m.Name, m.Data)
				continue
			}
			points[m.Name] = h.DataPoints
		}
	}
	return points
}

func TestOtelSeesTheSameSpansAndMetrics(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		scope := newTelescope()
		r := run(t, scope.program(&shop{}))
		notes := shopAround(t.Context(), t, r.conn)
		r.stop()
		notes = append(notes, scope.sorted()...)
		var counts []string
		for name, points := range scope.durations(t) {
			for _, p := range points {
				counts = append(counts, fmt.Sprintf("%s of %s: %d", name, attributes(p.Attributes.ToSlice()), p.Count))
			}
		}
		slices.Sort(counts)
		return append(notes, counts...)
	})
}

func TestOtelParentsTheServersSpanToTheClients(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		scope := newTelescope()
		var inHandler trace.SpanContext
		prog := scope.program(nil)
		prog.register = func(srv reflection.GRPCServer) {
			pb.RegisterShopServer(srv, probe{do: func(ctx context.Context) { inHandler = trace.SpanContextFromContext(ctx) }})
		}
		r := run(t, prog)
		ctx, root := scope.tracer.Tracer("test").Start(t.Context(), "root")
		if _, err := pb.NewShopClient(r.conn).Get(ctx, &pb.GetRequest{Name: "tea"}); err != nil {
			t.Fatal(err)
		}
		root.End()
		r.stop()

		var client, server sdktrace.ReadOnlySpan
		for _, span := range scope.spans.Ended() {
			switch span.SpanKind() {
			case trace.SpanKindClient:
				client = span
			case trace.SpanKindServer:
				server = span
			}
		}
		if client == nil || server == nil {
			t.Fatalf("the spans that ended: %v", scope.sorted())
		}
		if client.Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("the client's parent is %v, want the root", client.Parent())
		}
		if server.Parent().SpanID() != client.SpanContext().SpanID() || !server.Parent().IsRemote() {
			t.Errorf("the server's parent is %v, want the client's, remote", server.Parent())
		}
		if inHandler.SpanID() != server.SpanContext().SpanID() {
			t.Errorf("the handler runs in span %v, want the server's", inHandler)
		}
		if id := root.SpanContext().TraceID(); client.SpanContext().TraceID() != id || server.SpanContext().TraceID() != id {
			t.Error("the spans are not of one trace")
		}
		if server.StartTime().Before(client.StartTime()) {
			t.Error("the server's span starts before the client's")
		}
	})
}

// A probe calls do in Get.
type probe struct {
	pb.UnimplementedShopServer
	do func(context.Context)
}

func (p probe) Get(ctx context.Context, _ *pb.GetRequest) (*pb.Item, error) {
	p.do(ctx)
	return &pb.Item{}, nil
}

// In a synctest bubble, a call takes exactly as long as its handler sleeps.
func TestOtelMeasuresHowLongCallsTake(t *testing.T) {
	const nap = 3 * time.Second
	onEach(t, func(t *testing.T, run runner) {
		synctest.Test(t, func(t *testing.T) {
			scope := newTelescope()
			r := run(t, scope.program(&shop{nap: nap}))
			client := pb.NewShopClient(r.conn)
			if _, err := client.Get(context.Background(), &pb.GetRequest{Name: "tea"}); err != nil {
				t.Fatal(err)
			}
			list, err := client.List(t.Context(), &pb.ListRequest{Count: 2})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := drain(list.Recv); err != nil {
				t.Fatal(err)
			}
			r.stop()

			spans := scope.spans.Ended()
			if len(spans) != 4 {
				t.Errorf("%d spans ended, want 4", len(spans))
			}
			for _, span := range spans {
				if took := span.EndTime().Sub(span.StartTime()); took != nap {
					t.Errorf("the %s span of %s took %v, want %v", span.SpanKind(), span.Name(), took, nap)
				}
			}
			histograms := scope.durations(t)
			if len(histograms) != 2 {
				t.Errorf("%d histograms, want the client's and the server's", len(histograms))
			}
			for name, points := range histograms {
				for _, p := range points {
					if p.Count != 1 || p.Sum != nap.Seconds() {
						t.Errorf("%s counted %d in %v s, want 1 in %v", name, p.Count, p.Sum, nap.Seconds())
					}
				}
			}
		})
	})
}
