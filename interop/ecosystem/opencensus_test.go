package ecosystem

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.opencensus.io/plugin/ocgrpc"
	"go.opencensus.io/trace"
	"google.golang.org/grpc/stats"
)

// A collector records spans. Unlike OpenTelemetry's, they contain the size of each message.
type collector struct {
	mu    sync.Mutex
	spans []*trace.SpanData
}

func (c *collector) ExportSpan(s *trace.SpanData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, s)
}

func TestOpenCensusSeesTheSameMessageSizes(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		var seen collector
		trace.RegisterExporter(&seen)
		defer trace.UnregisterExporter(&seen)
		always := trace.StartOptions{Sampler: trace.AlwaysSample()}
		r := run(t, program{
			register:    registerShop(&shop{}),
			serverStats: []stats.Handler{&ocgrpc.ServerHandler{StartOptions: always}},
			clientStats: []stats.Handler{&ocgrpc.ClientHandler{StartOptions: always}},
		})
		notes := shopAround(t.Context(), t, r.conn)
		r.stop()

		names := map[trace.SpanID]int{}
		for _, s := range seen.spans {
			names[s.SpanID] = s.SpanKind
		}
		var spans []string
		for _, s := range seen.spans {
			line := fmt.Sprintf("%s: kind %d, parent's kind %d, remote %v, status %d %q, %v:", s.Name, s.SpanKind, names[s.ParentSpanID], s.HasRemoteParent, s.Code, s.Message, s.Attributes)
			for _, e := range s.MessageEvents {
				line += fmt.Sprintf(" %d:%d/%d", e.EventType, e.UncompressedByteSize, e.CompressedByteSize)
			}
			spans = append(spans, line)
		}
		slices.Sort(spans)
		if len(spans) != 12 {
			t.Errorf("%d spans ended, want those of 6 calls on both sides", len(spans))
		}
		return append(notes, spans...)
	})
}
