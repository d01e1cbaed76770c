package targets

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestXDS(t *testing.T) { run(t, xdsCases) }

var xdsCases = []Case{
	{Name: "endpoints", Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s})})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Settle(client, c.Size)
		c.Spread("calls", client, 6*c.Size)
		c.Authority("authority", client)
		c.Note("state %v, target %q", client.GetState(), client.Target())
		st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
		c.Err("stream", err)
		_ = st.CloseSend()
		_, err = st.Recv()
		c.Err("end", err)
	}},
	{Name: "routes", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		hashed := toCluster("ring")
		hashed.HashPolicy = []*routepb.RouteAction_HashPolicy{{PolicySpecifier: &routepb.RouteAction_HashPolicy_Header_{Header: &routepb.RouteAction_HashPolicy_Header{HeaderName: "user"}}}}
		weighted := &routepb.RouteAction{ClusterSpecifier: &routepb.RouteAction_WeightedClusters{WeightedClusters: &routepb.WeightedCluster{Clusters: []*routepb.WeightedCluster_ClusterWeight{
			{Name: "main", Weight: wrapperspb.UInt32(25)}, {Name: "canary", Weight: wrapperspb.UInt32(75)}}}}}
		exact := route("", toCluster("canary"))
		exact.Match.PathSpecifier = &routepb.RouteMatch_Path{Path: "/grpc.testing.TestService/FullDuplexCall"}
		ring := cluster("ring")
		ring.LbPolicy = clusterpb.Cluster_RING_HASH
		x.Set([]*routepb.Route{exact, route("canary", toCluster("canary")), route("hash", hashed), route("weighted", weighted), route("nowhere", toCluster("unknown")), route("main", toCluster("main"))},
			[]*clusterpb.Cluster{cluster("main"), cluster("canary"), ring, cluster("unknown")},
			[]*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s[:2]}), assignment("canary", locality{servers: s[2:]}), assignment("ring", locality{servers: s}), assignment("unknown")})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		main, canary, hash := c.with("main", "yes"), c.with("canary", "yes"), func(user string) context.Context { return c.with("hash", "yes", "user", user) }
		c.Until("two serve", func() bool { return reached(main, client, 6) == 2 })
		c.Note("main: %s", spread(main, client, 6))
		c.Note("canary: %s", spread(canary, client, 3))
		c.Stream("by path", main, client)
		same := true
		for _, user := range []string{"ann", "bob", "cy", "dee"} {
			first, err := unary(hash(user), client)
			c.Err("hashed", err)
			for range 3 {
				id, _ := unary(hash(user), client)
				same = same && id == first
			}
		}
		c.Note("each user has one server: %v", same)
		weights := func() (share float64) {
			before := s[2].calls.Load()
			for range 200 {
				_, _ = unary(c.with("weighted", "yes"), client)
			}
			return float64(s[2].calls.Load()-before) / 200
		}
		c.Until("both clusters get their shares", func() bool { return math.Abs(weights()-0.75) < 0.1 })
		c.Unary("no route", c.ctx, client)
		c.Code("a cluster without endpoints", lastly(unary(c.with("nowhere", "yes"), client)))
	}},
	{Name: "timeouts and retries of routes", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		timed, retried := toCluster("main"), toCluster("main")
		timed.MaxStreamDuration = &routepb.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(c.Lasting(100 * time.Millisecond))}
		retried.RetryPolicy = &routepb.RetryPolicy{RetryOn: "unavailable", NumRetries: wrapperspb.UInt32(2), RetryBackOff: &routepb.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(time.Millisecond)}}
		x.Set([]*routepb.Route{route("timed", timed), route("retried", retried), route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s})})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Unary("call", c.ctx, client)
		c.Code("timeout", lastly(unary(c.with("timed", "yes", "wait", "1"), client)))
		st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.with("timed", "yes", "wait", "1"))
		if err == nil {
			_, err = st.Recv()
		}
		c.Code("timeout of a stream", err)
		c.Unary("not retried", c.with("fail-first", "1"), client)
		c.Unary("retried", c.with("retried", "yes", "fail-first", "1"), client)
		before := s[0].calls.Load()
		c.Unary("fails", c.with("retried", "yes", "fail", fmt.Sprint(int(codes.Unavailable))), client)
		c.Note("%d attempts", s[0].calls.Load()-before)
		c.Stream("stream, retried", c.with("retried", "yes", "fail-first", "1"), client)
	}},
	{Name: "faults", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		all := &typepb.FractionalPercent{Numerator: 100}
		abort, delay := route("abort", toCluster("main")), route("delay", toCluster("main"))
		abort.TypedPerFilterConfig = map[string]*anypb.Any{"fault": packed(&faultpb.HTTPFault{Abort: &faultpb.FaultAbort{ErrorType: &faultpb.FaultAbort_GrpcStatus{GrpcStatus: uint32(codes.PermissionDenied)}, Percentage: all}})}
		delay.TypedPerFilterConfig = map[string]*anypb.Any{"fault": packed(&faultpb.HTTPFault{Delay: &commonfaultpb.FaultDelay{FaultDelaySecifier: &commonfaultpb.FaultDelay_FixedDelay{FixedDelay: durationpb.New(30 * time.Millisecond)}, Percentage: all}})}
		x.Set([]*routepb.Route{abort, delay, route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s})})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Unary("no fault", c.ctx, client)
		c.Unary("abort", c.with("abort", "yes"), client)
		c.Unary("abort, wait", c.with("abort", "yes"), client, grpc.WaitForReady(true))
		c.Stream("abort of a stream", c.with("abort", "yes"), client)
		begun := time.Now()
		c.Unary("delay", c.with("delay", "yes"), client)
		st := c.Stream("delay of a stream", c.with("delay", "yes"), client)
		c.Note("both were delayed: %v", time.Since(begun) >= 60*time.Millisecond)
		c.Finish("end", st)
		ctx, cancel := context.WithTimeout(c.with("delay", "yes"), 5*time.Millisecond)
		defer cancel()
		c.Code("a deadline in the delay", lastly(unary(ctx, client)))
		c.Note("%d calls", s[0].calls.Load())
	}},
	{Name: "endpoints that change under load", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		set := func(servers ...*Server) {
			x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: servers})})
		}
		set(s[0])
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Unary("one", c.ctx, client)
		load := c.Load(4, client)
		set(s...)
		c.Until("all serve", func() bool { return s[0].calls.Load() > 0 && s[1].calls.Load() > 0 && s[2].calls.Load() > 0 })
		set(s[2])
		c.Until("connections end", func() bool { return s[0].conns.Load()+s[1].conns.Load() == 0 })
		load.More(20)
		load.Stop("load")
		c.Spread("the last", client, 3)
	}},
	{Name: "routes that change under load", Sizes: []int{3}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		set := func(to string) {
			// Two routes, so that the client knows both clusters before and after.
			x.Set([]*routepb.Route{route("a", toCluster("a")), route("b", toCluster("b")), route("", toCluster(to))}, []*clusterpb.Cluster{cluster("a"), cluster("b")},
				[]*endpointpb.ClusterLoadAssignment{assignment("a", locality{servers: s[:1]}), assignment("b", locality{servers: s[1:2]})})
		}
		set("a")
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Unary("a", c.ctx, client)
		load := c.Load(4, client)
		load.More(20)
		set("b")
		before := s[1].calls.Load()
		c.Until("b serves", func() bool { return s[1].calls.Load() > before+20 })
		load.Stop("load")
		c.Spread("b", client, 3)
	}},
	{Name: "certificates from the control plane", Sizes: []int{3}, Secure: true, Run: func(c *C) {
		s := c.Fleet(func(s *Server) { s.Mutual = true })
		x := c.Control()
		x.Certificates()
		x.Set([]*routepb.Route{route("other", toCluster("other")), route("hidden", toCluster("hidden")), route("", toCluster("main"))},
			[]*clusterpb.Cluster{secured(cluster("main"), "svc", true), secured(cluster("other"), "another", true), secured(cluster("hidden"), "svc", false)},
			[]*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s}), assignment("other", locality{servers: s}), assignment("hidden", locality{servers: s})})
		creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
		if err != nil {
			panic(err)
		}
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}, Creds: creds})
		c.Settle(client, c.Size)
		c.Spread("calls", client, 6*c.Size)
		for _, cluster := range []string{"other", "hidden"} {
			_, err := unary(c.with(cluster, "yes"), client)
			c.Note("%s: %v", cluster, status.Code(err))
		}
		c.Spread("calls", client, 6*c.Size)
	}},
	{Name: "localities", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")},
			[]*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s[:2]}, locality{servers: s[2:], priority: 1})})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Settle(client, 2)
		c.Spread("the first priority", client, 6)
		s[0].Down()
		c.Until("one is lost", func() bool { return reached(c.ctx, client, 6) == 1 })
		c.Spread("one of it", client, 3)
		s[1].Down()
		c.Until("the second priority serves", func() bool { id, _ := unary(c.ctx, client); return id == "s2" })
		c.Spread("the second priority", client, 3)
		s[0].Start()
		c.Until("the first priority serves", func() bool { id, _ := unary(c.ctx, client); return id == "s0" })
		c.Spread("the first priority again", client, 3)
	}},
	{Name: "resources that are missing", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main")})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}})
		c.Code("no endpoints", lastly(unary(c.ctx, client)))
		c.Await(client, connectivity.TransientFailure)
		c.Code("wait", lastly(unary(c.Timeout(30*time.Millisecond), client, grpc.WaitForReady(true))))
		x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s})})
		c.Unary("endpoints come", c.ctx, client, grpc.WaitForReady(true))
		_, err := c.TryDial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}, ServiceConfig: `{`})
		c.Err("a bad default config", err)
	}},
	{Name: "Close and idle", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		x := c.Control()
		x.Set([]*routepb.Route{route("", toCluster("main"))}, []*clusterpb.Cluster{cluster("main")}, []*endpointpb.ClusterLoadAssignment{assignment("main", locality{servers: s})})
		client := c.Dial("xds:///svc", Options{Resolvers: []resolver.Builder{x.Resolver()}, IdleTimeout: 30 * time.Millisecond})
		for range 2 {
			c.Unary("call", c.ctx, client)
			c.Await(client, connectivity.Idle)
			c.Until("the connection ends", func() bool { return s[0].conns.Load() == 0 })
		}
		c.Err("close", client.Close())
		c.Unary("closed", c.ctx, client)
	}},
}
