package metrics_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/examples/orders/orderspb"
	"github.com/nearcall/nearcall/internal/testing/leak"
	"github.com/nearcall/nearcall/metrics"
	"github.com/nearcall/nearcall/metrics/metricspb"
)

func TestMain(m *testing.M) { leak.Main(m) }

type shop struct {
	orderspb.UnimplementedOrdersServer
	awaited chan struct{}
}

func (shop) Place(_ context.Context, req *orderspb.PlaceRequest) (*orderspb.Order, error) {
	if req.GetItem() == "panic" {
		panic("as the test wants it")
	}
	if req.GetItem() == "" {
		return nil, status.Error(codes.NotFound, "no item")
	}
	return new(orderspb.Order), nil
}

func (s shop) Await(ctx context.Context, _ *orderspb.AwaitRequest) (*orderspb.Order, error) {
	s.awaited <- struct{}{}
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

type server interface {
	metrics.Server
	Serve(net.Listener) error
	Stop()
}

// onBoth runs a test on nearcall and on grpc-go.
func onBoth(t *testing.T, test func(t *testing.T, conn grpc.ClientConnInterface, awaited chan struct{})) {
	serve := func(t *testing.T, srv server, calls *metrics.Calls, lis net.Listener) chan struct{} {
		awaited := make(chan struct{})
		orderspb.RegisterOrdersServer(srv, shop{awaited: awaited})
		calls.Register(srv)
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(lis) }()
		t.Cleanup(func() {
			srv.Stop()
			if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Error(err)
			}
		})
		return awaited
	}
	t.Run("nearcall", func(t *testing.T) {
		lis, err := nearcall.Listen("tcp:127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		calls := metrics.NewCalls()
		awaited := serve(t, nearcall.NewServer(nearcall.StatsHandler(calls)), calls, lis)
		conn, err := nearcall.NewClient(lis.Target())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		test(t, conn, awaited)
	})
	t.Run("grpc-go", func(t *testing.T) {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		calls := metrics.NewCalls()
		awaited := serve(t, grpc.NewServer(grpc.StatsHandler(calls)), calls, lis)
		conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		test(t, conn, awaited)
	})
}

// get returns the counts by method once ready accepts them: a server counts the end of a call
// after its client has the reply.
func get(t *testing.T, conn grpc.ClientConnInterface, ready func(map[string]*metricspb.Method) bool) map[string]*metricspb.Method {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		reply, err := metricspb.NewMetricsClient(conn).Get(t.Context(), &metricspb.GetRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if reply.GetSince() > reply.GetNow() || time.Since(time.Unix(0, reply.GetNow())).Abs() > time.Hour {
			t.Fatalf("it counts from %d to %d", reply.GetSince(), reply.GetNow())
		}
		methods := make(map[string]*metricspb.Method)
		for _, m := range reply.GetMethods() {
			methods[m.GetName()] = m
		}
		if ready(methods) {
			return methods
		}
		if time.Now().After(deadline) {
			t.Fatalf("the counts are %v", methods)
		}
	}
}

const (
	placed = "/nearcall.examples.orders.Orders/Place"
	await  = "/nearcall.examples.orders.Orders/Await"
)

func TestCallsAreCountedByMethodAndCode(t *testing.T) {
	onBoth(t, func(t *testing.T, conn grpc.ClientConnInterface, _ chan struct{}) {
		client := orderspb.NewOrdersClient(conn)
		for i := range 5 {
			item := "tea"
			if i < 2 {
				item = ""
			}
			if _, err := client.Place(t.Context(), &orderspb.PlaceRequest{Item: item}); (err != nil) != (item == "") {
				t.Fatal(err)
			}
		}
		ended := func(m *metricspb.Method) (n uint64) {
			for _, each := range m.GetEnded() {
				n += each
			}
			return n
		}
		methods := get(t, conn, func(all map[string]*metricspb.Method) bool { return ended(all[placed]) == 5 })
		if len(methods) != 1 {
			t.Errorf("other methods are counted: %v", methods)
		}
		m := methods[placed]
		if m.GetBegun() != 5 || m.GetEnded()[uint32(codes.OK)] != 3 || m.GetEnded()[uint32(codes.NotFound)] != 2 {
			t.Errorf("the counts are %v", m)
		}
		var timed uint64
		last := int64(0)
		for _, b := range m.GetTimes() {
			timed += b.GetCalls()
			if b.GetMostNanoseconds() <= last {
				t.Errorf("the buckets are not in order: %v", m.GetTimes())
			}
			last = b.GetMostNanoseconds()
		}
		if timed != 5 {
			t.Errorf("%d calls have times", timed)
		}
	})
}

func TestCallsRunUntilTheyEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, conn grpc.ClientConnInterface, awaited chan struct{}) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := orderspb.NewOrdersClient(conn).Await(ctx, &orderspb.AwaitRequest{})
			ended <- err
		}()
		<-awaited
		m := get(t, conn, func(all map[string]*metricspb.Method) bool { return all[await] != nil })[await]
		if m.GetBegun() != 1 || len(m.GetEnded()) != 0 || len(m.GetTimes()) != 0 {
			t.Errorf("while it runs the counts are %v", m)
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		get(t, conn, func(all map[string]*metricspb.Method) bool {
			return all[await].GetEnded()[uint32(codes.Canceled)] == 1
		})
	})
}

// TestInterceptorsCount checks that the interceptors count the calls that reach handlers, and
// those whose handlers panic.
func TestInterceptorsCount(t *testing.T) {
	calls := metrics.NewCalls()
	srv := nearcall.NewServer(nearcall.ChainUnaryInterceptor(calls.UnaryInterceptor), nearcall.ChainStreamInterceptor(calls.StreamInterceptor))
	defer srv.Stop()
	orderspb.RegisterOrdersServer(srv, shop{})
	calls.Register(srv)
	conn := srv.Client()
	defer conn.Close()
	client := orderspb.NewOrdersClient(conn)
	for _, item := range []string{"", "tea", "panic"} {
		func() {
			defer func() { _ = recover() }() // the handler runs on this goroutine
			_, _ = client.Place(context.Background(), &orderspb.PlaceRequest{Item: item})
		}()
	}
	list, err := client.List(t.Context(), &orderspb.ListRequest{})
	if err == nil {
		_, err = list.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Fatal(err)
	}
	const listed = "/nearcall.examples.orders.Orders/List"
	methods := get(t, conn, func(all map[string]*metricspb.Method) bool { return len(all[listed].GetEnded()) > 0 })
	if m := methods[placed]; m.GetBegun() != 3 || m.GetEnded()[uint32(codes.OK)] != 1 || m.GetEnded()[uint32(codes.NotFound)] != 1 || m.GetEnded()[uint32(codes.Unknown)] != 1 {
		t.Errorf("the counts are %v", m)
	}
	if m := methods[listed]; m.GetBegun() != 1 || m.GetEnded()[uint32(codes.Unimplemented)] != 1 || len(methods) != 2 {
		t.Errorf("the counts are %v", methods)
	}
}

// TestUnknownMethodsAreOne checks that names which clients invent take no memory. A runtime may
// report such calls or not.
func TestUnknownMethodsAreOne(t *testing.T) {
	onBoth(t, func(t *testing.T, conn grpc.ClientConnInterface, _ chan struct{}) {
		for _, name := range []string{"/a.B/C", "/a.B/D", "/nearcall.examples.orders.Orders/Steal"} {
			if err := conn.Invoke(t.Context(), name, new(emptypb.Empty), new(emptypb.Empty)); status.Code(err) != codes.Unimplemented {
				t.Fatal(err)
			}
		}
		methods := get(t, conn, func(map[string]*metricspb.Method) bool { return true })
		for name := range methods {
			if name != "" {
				t.Errorf("there are counts for %q", name)
			}
		}
	})
}

// BenchmarkCall measures what the handler adds to a call, and what a stats handler that does
// nothing adds.
func BenchmarkCall(b *testing.B) {
	for _, c := range []struct {
		name string
		opts func() []nearcall.ServerOption
	}{
		{"no handler", func() []nearcall.ServerOption { return nil }},
		{"empty handler", func() []nearcall.ServerOption { return []nearcall.ServerOption{nearcall.StatsHandler(empty{})} }},
		{"metrics", func() []nearcall.ServerOption {
			return []nearcall.ServerOption{nearcall.StatsHandler(metrics.NewCalls())}
		}},
		{"metrics interceptor", func() []nearcall.ServerOption {
			return []nearcall.ServerOption{nearcall.ChainUnaryInterceptor(metrics.NewCalls().UnaryInterceptor)}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			srv := nearcall.NewServer(c.opts()...)
			defer srv.Stop()
			orderspb.RegisterOrdersServer(srv, shop{})
			conn := srv.Client()
			defer conn.Close()
			client, req := orderspb.NewOrdersClient(conn), &orderspb.PlaceRequest{Item: "tea"}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Place(context.Background(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHandler measures the handler without a runtime, on all processors at once.
func BenchmarkHandler(b *testing.B) {
	calls := metrics.NewCalls()
	info := &stats.RPCTagInfo{FullMethodName: placed}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		begin := &stats.Begin{BeginTime: time.Now()}
		end := &stats.End{BeginTime: begin.BeginTime, EndTime: begin.BeginTime.Add(time.Millisecond)}
		for pb.Next() {
			ctx := calls.TagRPC(context.Background(), info)
			calls.HandleRPC(ctx, begin)
			calls.HandleRPC(ctx, end)
		}
	})
}

type empty struct{}

func (empty) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (empty) HandleRPC(context.Context, stats.RPCStats)                         {}
func (empty) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (empty) HandleConn(context.Context, stats.ConnStats)                       {}
