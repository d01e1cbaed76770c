package ecosystem

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"github.com/nearcall/nearcall"
)

// grpcConn returns the *grpc.ClientConn for APIs that require this type.
func grpcConn(conn grpc.ClientConnInterface) *grpc.ClientConn {
	if c, ok := conn.(*nearcall.ClientConn); ok {
		return c.GRPC()
	}
	return conn.(*grpc.ClientConn)
}

// A spanCollector records the names of the spans that were exported to it.
type spanCollector struct {
	otlp.UnimplementedTraceServiceServer
	spans []string
}

func (c *spanCollector) Export(_ context.Context, req *otlp.ExportTraceServiceRequest) (*otlp.ExportTraceServiceResponse, error) {
	for _, resource := range req.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				c.spans = append(c.spans, scope.GetScope().GetName()+": "+span.GetName())
			}
		}
	}
	return &otlp.ExportTraceServiceResponse{}, nil
}

func TestOTLPExportsThroughAGRPCConn(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		c := &spanCollector{}
		conn := grpcConn(run(t, program{register: func(srv reflection.GRPCServer) { otlp.RegisterTraceServiceServer(srv, c) }}).conn)
		exporter, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithGRPCConn(conn))
		if err != nil {
			t.Fatal(err)
		}
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
		for _, name := range []string{"one", "two"} {
			_, span := provider.Tracer("tea").Start(t.Context(), name)
			span.End()
		}
		if err := provider.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"tea: one", "tea: two"}; !slices.Equal(c.spans, want) {
			t.Errorf("the collector has %q, want %q", c.spans, want)
		}
		return c.spans
	})
}
