package ecosystem

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
)

// gather returns all counts that are not zero: the values of counters and the
// number of observations of histograms.
func gather(t *testing.T, reg *prometheus.Registry) (counts []string, zeroes int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "grpc_service" || l.GetValue() != service {
					labels = append(labels, l.GetValue())
				}
			}
			n := m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if n == 0 {
				zeroes++
				continue
			}
			counts = append(counts, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, " "), n))
		}
	}
	slices.Sort(counts)
	return counts, zeroes
}

func TestPrometheusCountsCallsAndMessages(t *testing.T) {
	compare(t, func(t *testing.T, run runner) []string {
		server := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram())
		client := grpcprom.NewClientMetrics(grpcprom.WithClientHandlingTimeHistogram(), grpcprom.WithClientStreamRecvHistogram(), grpcprom.WithClientStreamSendHistogram())
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(server, client)
		r := run(t, program{
			register: func(srv reflection.GRPCServer) {
				registerShop(&shop{})(srv)
				server.InitializeMetrics(srv)
			},
			serverUnary:  []grpc.UnaryServerInterceptor{server.UnaryServerInterceptor()},
			serverStream: []grpc.StreamServerInterceptor{server.StreamServerInterceptor()},
			clientUnary:  []grpc.UnaryClientInterceptor{client.UnaryClientInterceptor()},
			clientStream: []grpc.StreamClientInterceptor{client.StreamClientInterceptor()},
		})
		_, before := gather(t, reg)
		shopAround(t.Context(), t, r.conn)
		r.stop()
		counts, _ := gather(t, reg)
		for _, want := range []string{
			"grpc_server_started_total{Get unary} 2",
			"grpc_server_handled_total{OK Get unary} 1",
			"grpc_server_handled_total{NotFound Get unary} 1",
			"grpc_server_handled_total{ResourceExhausted List server_stream} 1",
			"grpc_server_msg_sent_total{List server_stream} 6",
			"grpc_server_msg_received_total{Import client_stream} 4",
			"grpc_client_handled_total{OK Haggle bidi_stream} 1",
			"grpc_client_msg_received_total{List server_stream} 6",
			"grpc_client_msg_sent_total{Import client_stream} 4",
			"grpc_client_handling_seconds{Get unary} 2",
		} {
			if !slices.Contains(counts, want) {
				t.Errorf("there is no %s", want)
			}
		}
		return append(counts, fmt.Sprint(before, " that were registered before"))
	})
}
