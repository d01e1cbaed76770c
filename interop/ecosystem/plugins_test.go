package ecosystem

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	xds "github.com/cncf/xds/go/xds/data/orca/v3"
	xdsservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	experimental "google.golang.org/grpc/experimental/opentelemetry"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats/opentelemetry"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/forward"
	pb "github.com/nearcall/nearcall/interop/ecosystem/internal/gatewaypb"
)

// grpc-go's plugins are options of a grpc.Server. These options are opaque: only grpc-go can apply
// them. So each of these tests gives an option to a server, and calls it in one of these ways.
var throughAServer = map[string]func(*testing.T, grpc.ServerOption, pb.ShopServer) running{
	"grpc-go": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := grpc.NewServer(plugin)
		pb.RegisterShopServer(srv, shop)
		return running{ordinaryClient(t, srv), srv.GracefulStop}
	},
	"nearcall, forwarded": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := grpc.NewServer(plugin)
		pb.RegisterShopServer(srv, shop)
		near := nearcall.NewServer(forward.To(srv))
		return running{ownClient(t, near, ""), func() { near.GracefulStop(); srv.GracefulStop() }}
	},
	"nearcall, ordinary client": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := withPlugin(plugin, shop)
		return running{ordinaryClient(t, srv), srv.GracefulStop}
	},
	"nearcall, in process": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := withPlugin(plugin, shop)
		return running{ownClient(t, srv, ""), srv.GracefulStop}
	},
	"nearcall, TCP": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := withPlugin(plugin, shop)
		return running{ownClient(t, srv, "tcp:127.0.0.1:0"), srv.GracefulStop}
	},
	"nearcall, WebSocket": func(t *testing.T, plugin grpc.ServerOption, shop pb.ShopServer) running {
		srv := withPlugin(plugin, shop)
		return running{ownClient(t, srv, "ws://127.0.0.1:0/"), srv.GracefulStop}
	},
}

func withPlugin(plugin grpc.ServerOption, shop pb.ShopServer) *nearcall.Server {
	srv := nearcall.NewServer(nearcall.GRPCServerOptions(plugin))
	pb.RegisterShopServer(srv, shop)
	return srv
}

// ownClient returns a client of nearcall's: over a connection to a listener on target, or in process
// without one.
func ownClient(t *testing.T, srv *nearcall.Server, target string) grpc.ClientConnInterface {
	t.Helper()
	conn := srv.Client()
	if target != "" {
		lis, err := nearcall.Listen(target)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(lis) }()
		t.Cleanup(func() {
			if err := <-served; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		if conn, err = nearcall.NewClient(lis.Target()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.GracefulStop()
	})
	return conn
}

// ordinaryClient serves srv, and returns an ordinary gRPC client of it.
func ordinaryClient(t *testing.T, srv interface {
	Serve(net.Listener) error
	GracefulStop()
}, opts ...grpc.DialOption) grpc.ClientConnInterface {
	lis := bufconn.Listen(64 << 10)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:bufconn", append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.GracefulStop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return conn
}

// buy makes a unary call that succeeds, one that fails, and a stream. It returns their trailers.
func buy(t *testing.T, conn grpc.ClientConnInterface) (trailers [3]metadata.MD) {
	t.Helper()
	client := pb.NewShopClient(conn)
	if _, err := client.Get(t.Context(), &pb.GetRequest{Name: "tea"}, grpc.Trailer(&trailers[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), &pb.GetRequest{Name: "missing"}, grpc.Trailer(&trailers[1])); err == nil {
		t.Fatal("the shop has what is missing")
	}
	list, err := client.List(t.Context(), &pb.ListRequest{Count: 2}, grpc.Trailer(&trailers[2]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drain(list.Recv); err != nil {
		t.Fatal(err)
	}
	return trailers
}

// counts returns a line for each data point of the metrics.
func (s telescope) counts(t *testing.T) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					lines = append(lines, fmt.Sprintf("%s of %s: %d", m.Name, attributes(p.Attributes.ToSlice()), p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					lines = append(lines, fmt.Sprintf("%s of %s: %d", m.Name, attributes(p.Attributes.ToSlice()), p.Count))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					lines = append(lines, fmt.Sprintf("%s of %s: %d, %d bytes", m.Name, attributes(p.Attributes.ToSlice()), p.Count, p.Sum))
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func (s telescope) plugin() opentelemetry.Options {
	return opentelemetry.Options{
		MetricsOptions: opentelemetry.MetricsOptions{MeterProvider: s.meter},
		TraceOptions:   experimental.TraceOptions{TracerProvider: s.tracer, TextMapPropagator: propagation.TraceContext{}},
	}
}

// Inside GRPCServerOptions the plugin measures ordinary gRPC clients only.
func TestGRPCsOpenTelemetryPluginMeasuresAndTracesForwardedCalls(t *testing.T) {
	measured := map[string][]string{}
	for _, name := range []string{"grpc-go", "nearcall, forwarded", "nearcall, ordinary client", "nearcall, in process"} {
		t.Run(name, func(t *testing.T) {
			scope := newTelescope()
			r := throughAServer[name](t, opentelemetry.ServerOption(scope.plugin()), &shop{})
			buy(t, r.conn)
			r.stop()
			measured[name] = append(scope.counts(t), scope.sorted()...)
		})
	}
	if want := measured["grpc-go"]; len(want) < 13 {
		t.Errorf("through grpc-go the plugin has measured only %q", want)
	}
	for name, got := range measured {
		want := measured["grpc-go"]
		if name == "nearcall, in process" {
			want = nil
		}
		if !slices.Equal(want, got) {
			t.Errorf("%s: the plugin has measured\n%s\ninstead of\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A costly shop reports the cost of each call, if the call has a recorder.
type costly struct{ shop }

func charge(ctx context.Context) {
	if r := orca.CallMetricsRecorderFromContext(ctx); r != nil {
		r.SetRequestCost("leaves", 7)
	}
}

func (c *costly) Get(ctx context.Context, req *pb.GetRequest) (*pb.Item, error) {
	charge(ctx)
	return c.shop.Get(ctx, req)
}

func (c *costly) List(req *pb.ListRequest, stream grpc.ServerStreamingServer[pb.Item]) error {
	charge(stream.Context())
	return c.shop.List(req, stream)
}

// wantReports checks that each call has brought its cost in its trailer.
func wantReports(t *testing.T, trailers [3]metadata.MD) {
	t.Helper()
	for i, md := range trailers {
		var report xds.OrcaLoadReport
		if all := md["endpoint-load-metrics-bin"]; len(all) != 1 || proto.Unmarshal([]byte(all[0]), &report) != nil || report.GetRequestCost()["leaves"] != 7 {
			t.Errorf("call %d has the reports %q", i, all)
		}
	}
}

func TestORCAReportsCalls(t *testing.T) {
	for name, serve := range throughAServer {
		t.Run(name, func(t *testing.T) {
			wantReports(t, buy(t, serve(t, orca.CallMetricsServerOption(nil), &costly{}).conn))
		})
	}
}

func TestORCAReportsOutOfBand(t *testing.T) {
	onEach(t, func(t *testing.T, run runner) {
		recorder := orca.NewServerMetricsRecorder()
		recorder.SetCPUUtilization(0.5)
		r := run(t, program{register: func(srv reflection.GRPCServer) {
			if err := orca.Register(srv, orca.ServiceOptions{ServerMetricsProvider: recorder}); err != nil {
				t.Fatal(err)
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		reports, err := xdsservice.NewOpenRcaServiceClient(r.conn).StreamCoreMetrics(ctx, &xdsservice.OrcaLoadReportRequest{})
		if err != nil {
			t.Fatal(err)
		}
		report, err := reports.Recv()
		if err != nil || report.GetCpuUtilization() != 0.5 {
			t.Errorf("the report is %v, %v", report, err)
		}
	})
}

// The plugin's option for clients measures attempts in grpc-go's transport, so it is for targets
// that go to grpc-go. The server may be nearcall's.
func TestGRPCsOpenTelemetryPluginMeasuresClientsOfNearcallsServers(t *testing.T) {
	scope := newTelescope()
	srv := nearcall.NewServer()
	pb.RegisterShopServer(srv, &shop{})
	buy(t, ordinaryClient(t, srv, opentelemetry.DialOption(scope.plugin())))
	if n := len(scope.counts(t)); n < 10 {
		t.Errorf("the plugin has measured %q", scope.counts(t))
	}
}
