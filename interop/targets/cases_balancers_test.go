package targets

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	v3orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/randomsubsetting"
	_ "google.golang.org/grpc/balancer/ringhash"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/resolver"
	ringhash "google.golang.org/grpc/resolver/ringhash"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds" // registers outlier_detection_experimental
	"google.golang.org/protobuf/proto"
)

func TestBalancers(t *testing.T) { run(t, balancerCases) }

var balancerCases = []Case{
	{Name: "pick_first", Fleets: everywhere, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance("", addresses(s...))
		c.Spread("default", client, 6)
		client, _ = c.Balance(pickFirst, append([]resolver.Address{c.refused("dead")}, addresses(s...)...))
		c.Spread("the first address is refused", client, 6)
		for range 4 {
			client, _ = c.Balance(policy("pick_first", `{"shuffleAddressList":true}`), addresses(s...))
			c.Note("shuffled: %d", reached(c.ctx, client, 9))
		}
	}},
	{Name: "pick_first goes to the next server", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...))
		for i := range 2 {
			c.Spread("calls", client, 3)
			s[i].Down()
			c.Await(client, connectivity.Idle)
		}
		c.Spread("calls", client, 3)
		s[0].Start()
		c.Spread("the first is back", client, 3)
	}},
	{Name: "round_robin", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(roundRobin, addresses(s...))
		c.Settle(client, 3)
		for range 4 {
			c.Note("the next 3 calls reach %d", reached(c.ctx, client, 3))
		}
		s[1].Down()
		c.Until("one connection is lost", func() bool { return s[1].conns.Load() == 0 })
		c.Settle(client, 2)
		c.Note("one is down: 4 calls reach %d", reached(c.ctx, client, 4))
		s[1].Start()
		c.Settle(client, 3)
		c.Spread("it is back", client, 9)
	}},
	{Name: "round_robin with streams", Fleets: everywhere, Sizes: []int{3}, Run: func(c *C) {
		client, _ := c.Balance(roundRobin, addresses(c.Fleet()...))
		c.Settle(client, 3)
		got := map[string]int{}
		for range 6 {
			st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
			if err != nil {
				c.Err("stream", err)
				continue
			}
			_ = st.Send(&pb.StreamingOutputCallRequest{})
			m, _ := st.Recv()
			got[string(m.GetPayload().GetBody())]++
			_ = st.CloseSend()
			_, err = st.Recv()
			c.Err("end", err)
		}
		c.Note("streams: %s", counts(got))
	}},
	{Name: "weighted_round_robin by trailers", Sizes: []int{3}, Run: func(c *C) { c.weighted(false) }},
	{Name: "weighted_round_robin out of band", Sizes: []int{3}, Plain: true, Run: func(c *C) { c.weighted(true) }},
	{Name: "least_request", Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(policy("least_request_experimental", `{"choiceCount":3}`), addresses(s...))
		c.Settle(client, c.Size)
		// A server whose handlers wait is chosen less often than the others.
		var wg sync.WaitGroup
		for range 8 * c.Size {
			wg.Go(func() { _, _ = unary(c.with("wait", "1"), client) })
		}
		c.Until("all handlers wait", func() bool {
			n := 0
			for _, s := range s {
				n += s.Waiting()
			}
			return n == 8*c.Size
		})
		for _, s := range s {
			c.Note("%s has a share: %v", s.Name, s.Waiting() >= 4)
		}
		busy := s[0].Waiting()
		for _, s := range s[1:] {
			s.Release()
		}
		c.Until("others are idle", func() bool {
			for _, s := range s[1:] {
				if s.Waiting() > 0 {
					return false
				}
			}
			return true
		})
		before := s[0].calls.Load()
		c.Note("calls fail: %v", reached(c.ctx, client, 60) < 0)
		c.Note("the busy server gets few: %v", s[0].calls.Load()-before < 20 || c.Size == 1)
		c.Note("it was busy: %v", busy > 0)
		s[0].Release()
		wg.Wait()
	}},
	{Name: "outlier_detection", Sizes: []int{3}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		bad := c.Serve("bad", 3)
		client, _ := c.Balance(policy("outlier_detection_experimental", `{"interval":"0.05s","baseEjectionTime":"100s","maxEjectionPercent":50,"failurePercentageEjection":{"threshold":50,"enforcementPercentage":100,"minimumHosts":3,"requestVolume":3},"childPolicy":[{"round_robin":{}}]}`), addresses(append(s, bad)...))
		c.Settle(client, 4)
		bad.Fails(codes.Internal)
		failed := 0
		c.Until("the failing server is ejected", func() bool {
			_, err := unary(c.ctx, client)
			if err != nil {
				failed++
			}
			return failed > 0 && reached(c.ctx, client, 30) == 3
		})
		c.Note("calls reach %d", reached(c.ctx, client, 30))
		c.Note("state %v", client.GetState())
	}},
	{Name: "ring_hash", Fleets: everywhere, Run: func(c *C) {
		s := c.Fleet()
		r := c.Source("own")
		var state resolver.State
		for _, s := range s {
			// The keys make the ring independent of the ports.
			state.Endpoints = append(state.Endpoints, ringhash.SetHashKey(resolver.Endpoint{Addresses: []resolver.Address{s.address()}}, "key of "+s.Name))
		}
		r.Set(state)
		client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: policy("ring_hash_experimental", `{"requestHashHeader":"user"}`)})
		for _, user := range []string{"ann", "bob", "cy", "dee", "eve", "ann", "bob", "cy", "dee", "eve"} {
			c.Unary(user, c.with("user", user), client)
		}
		c.Code("without the header", lastly(unary(c.ctx, client)))
		c.Stream("stream of ann", c.with("user", "ann"), client)
		client = c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: policy("ring_hash_experimental", `{}`)})
		c.Unary("no header is configured", c.ctx, client)
		for _, config := range []string{`{"requestHashHeader":"user-bin"}`, `{"minRingSize":9,"maxRingSize":3}`} {
			_, err := c.TryDial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: policy("ring_hash_experimental", config)})
			c.Err(config, err)
		}
	}},
	{Name: "random_subsetting", Sizes: []int{3}, Run: func(c *C) {
		client, _ := c.Balance(policy("random_subsetting_experimental", `{"subsetSize":2,"childPolicy":[{"round_robin":{}}]}`), addresses(c.Fleet()...))
		c.Settle(client, 2)
		c.Note("30 calls reach %d", reached(c.ctx, client, 30))
	}},
	{Name: "weighted_target and priority", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		for name, config := range map[string]string{
			"weighted_target_experimental": `{"targets":{"a":{"weight":1,"childPolicy":[{"round_robin":{}}]}}}`,
			"priority_experimental":        `{"priorities":["a"],"children":{"a":{"config":[{"round_robin":{}}]}}}`,
		} {
			client, _ := c.Balance(policy(name, config), addresses(c.Fleet()...))
			// The message is that of whichever of two pickers the call finds.
			c.Named(name).Code("call", lastly(unary(c.ctx, client)))
		}
	}},
	{Name: "a picker's errors", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		client, _ := c.Balance(asking, addresses(c.Fleet()...))
		c.Unary("first call", c.ctx, client)
		picks := 0
		with := func(ctx context.Context, err error) context.Context {
			picks = 0
			return context.WithValue(ctx, pickKey{}, pickFunc(func(balancer.PickInfo, balancer.SubConn) (balancer.PickResult, error) {
				picks++
				return balancer.PickResult{}, err
			}))
		}
		c.Unary("error", with(c.ctx, errIll), client)
		c.Unary("error, wait", with(c.Timeout(30*time.Millisecond), errIll), client, grpc.WaitForReady(true))
		c.Stream("error, stream", with(c.ctx, errIll), client)
		c.Unary("no SubConn", with(c.Timeout(30*time.Millisecond), balancer.ErrNoSubConnAvailable), client)
		cancelled, cancel := context.WithCancel(c.ctx)
		time.AfterFunc(c.Lasting(10*time.Millisecond), cancel)
		c.Unary("no SubConn, cancelled", with(cancelled, balancer.ErrNoSubConnAvailable), client)
		cancelled, cancel = context.WithCancel(c.ctx)
		time.AfterFunc(c.Lasting(10*time.Millisecond), cancel)
		c.Unary("error, wait, cancelled", with(cancelled, errIll), client, grpc.WaitForReady(true))
		for _, code := range allCodes {
			c.Unary("status", with(c.ctx, status.Error(code, "dropped")), client)
			c.Note("%d picks", picks)
		}
		c.Unary("status, wait", with(c.ctx, status.Error(codes.ResourceExhausted, "dropped")), client, grpc.WaitForReady(true))
		c.Unary("wrapped status", with(c.ctx, fmt.Errorf("wrapped: %w", status.Error(codes.Unavailable, "dropped"))), client)
		c.Stream("status, stream", with(c.ctx, status.Error(codes.Unavailable, "dropped")), client)
		c.Unary("wrapped", with(c.ctx, fmt.Errorf("wrapped: %w", balancer.ErrNoSubConnAvailable)), client)
	}},
	{Name: "drops are not retried", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		client, _ := c.Balance(`{"loadBalancingConfig":[{"asking":{}}],"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`, addresses(c.Fleet()...))
		for _, err := range []error{status.Error(codes.Unavailable, "dropped"), errIll, nil} {
			picks := 0
			ctx := context.WithValue(c.with("fail-first", "1"), pickKey{}, pickFunc(func(_ balancer.PickInfo, sc balancer.SubConn) (balancer.PickResult, error) {
				picks++
				return balancer.PickResult{SubConn: sc}, err
			}))
			c.Unary(fmt.Sprint(err), ctx, client)
			c.Note("%d picks", picks)
		}
	}},
	{Name: "a picker's metadata", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		client, _ := c.Balance(asking, addresses(c.Fleet()...))
		with := func(pairs ...string) context.Context {
			return context.WithValue(c.with("show", "own"), pickKey{}, pickFunc(func(info balancer.PickInfo, sc balancer.SubConn) (balancer.PickResult, error) {
				md, _ := metadata.FromOutgoingContext(info.Ctx)
				c.Named("picker").Note("%s %q", info.FullMethodName, md["show"])
				return balancer.PickResult{SubConn: sc, Metadata: metadata.Pairs(pairs...)}, nil
			}))
		}
		c.Shown("none", with(), client)
		c.Shown("more values", with("show", "picked", "show", "again"), client)
		c.Shown("authority", with(":authority", "picked.test"), client)
		c.Shown("authority, not in the certificate", with(":authority", "picked.example"), client)
		c.Shown("authority and the call's", with(":authority", "picked.test"), client, grpc.CallAuthority("call.test"))
		c.Shown("illegal key", with("sh ow", "x"), client)
		c.Shown("illegal value", with("show", "\x01"), client)
		c.Shown("reserved key", with("grpc-x", "x"), client)
		c.Shown("pseudo header", with(":path", "x"), client)
		_, err := pb.NewTestServiceClient(client).FullDuplexCall(with("show", "\x01"))
		c.Err("illegal value, stream", err)
	}},
	{Name: "Done", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(asking, addresses(s...), func(o *Options) { o.CallOptions = []grpc.CallOption{grpc.MaxCallSendMsgSize(100)} })
		c.Unary("first call", c.ctx, client)
		// done returns a context whose call notes Done, and how to wait for that.
		done := func(ctx context.Context) (context.Context, func()) {
			ch := make(chan struct{})
			return context.WithValue(ctx, pickKey{}, pickFunc(func(_ balancer.PickInfo, sc balancer.SubConn) (balancer.PickResult, error) {
				return balancer.PickResult{SubConn: sc, Done: func(d balancer.DoneInfo) {
					load, ok := d.ServerLoad.(*v3orcapb.OrcaLoadReport)
					c.Note("Done: %s, trailer %v, sent %v, received %v, load %v %v", describe(d.Err), trailerOf(d.Trailer), d.BytesSent, d.BytesReceived, ok, load.GetCpuUtilization())
					close(ch)
				}}, nil
			})), func() { c.Until("Done is called", func() bool { return isClosed(ch) }) }
		}
		ctx, wait := done(c.with("trailer", "x"))
		c.Unary("success", ctx, client)
		wait()
		for _, code := range []codes.Code{codes.NotFound, codes.Unavailable, codes.Canceled} {
			ctx, wait = done(c.with("fail", fmt.Sprint(int(code)), "trailer", "x"))
			c.Unary("failure", ctx, client)
			wait()
		}
		ctx, wait = done(c.ctx)
		st := c.Stream("stream", ctx, client)
		c.Finish("end", st)
		wait()
		ctx, wait = done(c.with("fail", "5"))
		st, err := pb.NewTestServiceClient(client).FullDuplexCall(ctx)
		c.Err("stream that fails", err)
		c.Finish("end", st)
		wait()
		ctx, wait = done(c.ctx)
		ctx, cancel := context.WithCancel(ctx)
		st = c.Stream("cancelled stream", ctx, client)
		cancel()
		_, err = st.Recv()
		c.Err("end", err)
		wait()
		ctx, wait = done(c.with("wait", "1"))
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(c.Lasting(10*time.Millisecond), cancel)
		c.Unary("cancelled call", ctx, client)
		wait()
		ctx, wait = done(c.ctx)
		_, err = pb.NewTestServiceClient(client).UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, 200)}})
		c.Err("too large", err)
		wait()
		creds := grpc.PerRPCCredentials(brokenCreds{})
		ctx, wait = done(c.ctx)
		c.Unary("broken credentials", ctx, client, creds)
		wait()
		ctx, wait = done(c.ctx)
		_, err = pb.NewTestServiceClient(client).FullDuplexCall(ctx, creds)
		c.Err("stream, broken credentials", err)
		wait()
		load, _ := proto.Marshal(&v3orcapb.OrcaLoadReport{CpuUtilization: 0.5})
		s[0].Trailer(metadata.Pairs("endpoint-load-metrics-bin", string(load)))
		ctx, wait = done(c.ctx)
		c.Unary("load", ctx, client)
		wait()
		s[0].Trailer(metadata.Pairs("endpoint-load-metrics-bin", "no load"))
		ctx, wait = done(c.ctx)
		c.Unary("malformed load", ctx, client)
		wait()
		s[0].Load(0.25)
		ctx, wait = done(c.ctx)
		c.Unary("two loads", ctx, client)
		wait()
		s[0].Trailer(nil)
		ctx, wait = done(c.ctx)
		c.Unary("load of a handler", ctx, client)
		wait()
		ctx, wait = done(c.with("fail", "5"))
		c.Unary("load of a call that fails", ctx, client)
		wait()
		ctx, wait = done(c.ctx)
		st = c.Stream("stream", ctx, client)
		c.Finish("load of a stream", st)
		wait()
		ctx, wait = done(c.with("fail", "5"))
		st, err = pb.NewTestServiceClient(client).FullDuplexCall(ctx)
		c.Err("stream that fails", err)
		c.Finish("load of a stream that fails", st)
		wait()
	}},
	{Name: "Done of attempts", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		client, _ := c.Balance(asking[:len(asking)-1]+retryUnavailable+"}", addresses(c.Fleet()...))
		c.Unary("first call", c.ctx, client)
		ch := make(chan balancer.DoneInfo, 2)
		ctx := context.WithValue(c.with("fail-first", "1"), pickKey{}, pickFunc(func(_ balancer.PickInfo, sc balancer.SubConn) (balancer.PickResult, error) {
			return balancer.PickResult{SubConn: sc, Done: func(d balancer.DoneInfo) { ch <- d }}, nil
		}))
		c.Unary("call", ctx, client)
		for range 2 {
			d := <-ch
			c.Note("Done: %v, trailer %v, sent %v, received %v", status.Code(d.Err), trailerOf(d.Trailer), d.BytesSent, d.BytesReceived)
		}
	}},
	{Name: "Done of a stream whose server stops", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(asking, addresses(s...))
		c.Unary("first call", c.ctx, client)
		ch := make(chan balancer.DoneInfo, 1)
		ctx := context.WithValue(c.ctx, pickKey{}, pickFunc(func(_ balancer.PickInfo, sc balancer.SubConn) (balancer.PickResult, error) {
			return balancer.PickResult{SubConn: sc, Done: func(d balancer.DoneInfo) { ch <- d }}, nil
		}))
		st := c.Stream("stream", ctx, client)
		s[0].Down()
		_, err := st.Recv()
		c.Code("end", err)
		d := <-ch
		c.Note("Done: %v, trailer %v, sent %v, received %v", status.Code(d.Err), trailerOf(d.Trailer), d.BytesSent, d.BytesReceived)
	}},
	{Name: "what a policy sees of pick_first", Sizes: []int{1}, Run: func(c *C) { c.seen(`{"pick_first":{}}`) }},
	{Name: "what a policy sees of round_robin", Sizes: []int{1}, Run: func(c *C) { c.seen(`{"round_robin":{}}`) }},
	{Name: "what a policy sees of addresses", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(c.Recording("policy", `{"round_robin":{}}`), addresses(s...), func(o *Options) { o.Authority, o.UserAgent = "set.test", "agent" })
		c.Await(client, connectivity.Idle)
		client.Connect()
		c.Settle(client, 3)
		r.Report(errIll)
		a := s[0].address()
		a.ServerName = "other.test"
		r.Addresses(a)
		c.Until("connections end", func() bool { return s[1].conns.Load()+s[2].conns.Load() == 0 })
		c.Settle(client, 1)
		r.Addresses()
		c.Until("connections end", func() bool { return s[0].conns.Load() == 0 })
		for _, want := range []struct {
			actor string
			ends  int
		}{{"subconn s0", 2}, {"subconn s1", 1}, {"subconn s2", 1}} {
			c.Until(want.actor+" ends", func() bool { return c.noted(want.actor, "SHUTDOWN") == want.ends })
		}
		client.Close()
		c.only("policy", "build", "update", "resolver error", "close")
	}},
	{Name: "a policy of SubConns", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h, config := c.Held()
		client, r := c.Balance(config, addresses(s...), func(o *Options) { o.Backoff = never })
		client.Connect()
		cc := h.ClientConn()
		//lint:ignore SA1019 it is deprecated, and policies use it
		c.Note("target %q", cc.Target())
		c.Note("metrics recorder %v", cc.MetricsRecorder() != nil)
		cc.ResolveNow(resolver.ResolveNowOptions{})
		c.Until("the resolver is asked", func() bool { return r.asked.Load() == 1 })
		_, err := c.NewSubConn(cc, "none", nil, balancer.NewSubConnOptions{})
		c.Err("no addresses", err)
		one, err := c.NewSubConn(cc, "one", addresses(s...), balancer.NewSubConnOptions{})
		c.Err("new", err)
		c.Unary("no picker", c.Timeout(20*time.Millisecond), client)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Connecting, Picker: to(one)})
		c.Await(client, connectivity.Connecting)
		c.Unary("it is not connected", c.Timeout(20*time.Millisecond), client)
		one.Connect()
		one.Connect()
		one.Await(connectivity.Ready)
		c.Unary("it is ready, the picker is old", c.Timeout(20*time.Millisecond), client)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Unary("ready", c.ctx, client)
		c.Await(client, connectivity.Ready)
		two, _ := c.NewSubConn(cc, "two", []resolver.Address{c.refused("dead"), s[0].address()}, balancer.NewSubConnOptions{})
		two.Connect()
		two.Await(connectivity.Ready)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(two)})
		c.Unary("a second", c.ctx, client)
		c.Until("two connections", func() bool { return s[0].conns.Load() == 2 })
		st := c.Stream("stream", c.ctx, client)
		two.Shutdown()
		two.Await(connectivity.Shutdown)
		c.Ping("shut down", st)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: to(one)})
		c.Unary("a picker that is ready in a state that is not", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
		c.Finish("end of the stream", st)
		c.Until("one connection", func() bool { return s[0].conns.Load() == 1 })
		three, _ := c.NewSubConn(cc, "three", []resolver.Address{c.refused("gone")}, balancer.NewSubConnOptions{})
		three.Connect()
		three.Await(connectivity.TransientFailure)
		three.Connect() // which does nothing in the backoff
		client.ResetConnectBackoff()
		three.Await(connectivity.Idle)
		three.Connect()
		three.Await(connectivity.TransientFailure)
		three.Shutdown()
		three.Await(connectivity.Shutdown)
		s[0].Down()
		one.Await(connectivity.Idle)
	}},
	{Name: "a policy that updates addresses", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		h, config := c.Held()
		client, _ := c.Balance(config, addresses(s...))
		client.Connect()
		cc := h.ClientConn()
		one, _ := c.NewSubConn(cc, "one", addresses(s[0]), balancer.NewSubConnOptions{})
		one.Connect()
		one.Await(connectivity.Ready)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Unary("first", c.ctx, client)
		//lint:ignore SA1019 it is deprecated, and policies use it
		one.UpdateAddresses(addresses(s[1], s[0]))
		one.Await(connectivity.Ready) // grpc-go does not keep the connection to the first server
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Unary("another list", c.ctx, client)
		//lint:ignore SA1019 it is deprecated, and policies use it
		one.UpdateAddresses(addresses(s[2]))
		one.Await(connectivity.Ready)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Unary("another", c.ctx, client)
		c.Until("the old connection ends", func() bool { return s[0].conns.Load() == 0 })
		//lint:ignore SA1019 it is deprecated, and policies use it
		cc.RemoveSubConn(one.SubConn)
		one.Await(connectivity.Shutdown)
	}},
	{Name: "a picker that picks what is not ready", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h, config := c.Held()
		client, _ := c.Balance(config, addresses(s...))
		client.Connect()
		cc := h.ClientConn()
		one, _ := c.NewSubConn(cc, "one", addresses(s...), balancer.NewSubConnOptions{})
		done := make(chan balancer.DoneInfo, 1)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Connecting, Picker: picker(func(balancer.PickInfo) (balancer.PickResult, error) {
			return balancer.PickResult{SubConn: one.SubConn, Done: func(d balancer.DoneInfo) { done <- d }}, nil
		})})
		result := make(chan string, 1)
		go func() {
			id, err := unary(c.ctx, client)
			result <- fmt.Sprint(id, err)
		}()
		c.Note("Done: %+v", <-done)
		one.Connect()
		one.Await(connectivity.Ready)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Note("call: %s", <-result)
	}},
	{Name: "producers", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h, config := c.Held()
		client, _ := c.Balance(config, addresses(s...))
		client.Connect()
		cc := h.ClientConn()
		one, _ := c.NewSubConn(cc, "one", addresses(s...), balancer.NewSubConnOptions{})
		b := &producerBuilder{c.Named("producer"), make(chan struct{}, 2)}
		one.Connect()
		one.Await(connectivity.Ready)
		p, closeFirst := one.GetOrBuildProducer(b)
		_, closeSecond := one.GetOrBuildProducer(b)
		c.Unary("a call on the SubConn", c.ctx, p.(grpc.ClientConnInterface))
		c.Stream("a stream on the SubConn", c.ctx, p.(grpc.ClientConnInterface))
		closeFirst()
		b.Note("one reference is closed")
		closeSecond()
		<-b.closed
		p, _ = one.GetOrBuildProducer(b)
		s[0].Down()
		one.Await(connectivity.Idle)
		<-b.closed
		_, err := unary(c.ctx, p.(grpc.ClientConnInterface))
		c.Code("a call after the loss", err)
	}},
	{Name: "health listeners", Sizes: []int{1}, Run: func(c *C) {
		h := health.NewServer()
		s := c.Fleet(func(s *Server) {
			s.Register = func(r grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(r, h) }
		})
		held, config := c.Held()
		client, r := c.Balance("", addresses(s...))
		client.Connect()
		c.Await(client, connectivity.Ready)
		r.Config(strings.TrimSuffix(config, "}")+`,"healthCheckConfig":{"serviceName":"x"}}`, addresses(s...)...)
		cc := held.ClientConn()
		listening, _ := c.NewSubConn(cc, "listening", addresses(s...), balancer.NewSubConnOptions{})
		listening.Connect()
		listening.Await(connectivity.Ready)
		h.SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
		listening.RegisterHealthListener(func(s balancer.SubConnState) {
			if s.ConnectionError != nil && strings.Contains(s.ConnectionError.Error(), "context canceled") {
				return // Shutdown has ended the watch, and the listener hears that or not
			}
			c.Named("listener").Note("%v %v", s.ConnectivityState, s.ConnectionError)
		})
		c.Until("it is healthy", func() bool { return c.noted("listener", "READY") == 1 })
		h.SetServingStatus("x", healthpb.HealthCheckResponse_NOT_SERVING)
		c.Until("it is not healthy", func() bool { return c.noted("listener", "TRANSIENT_FAILURE") == 1 })
		listening.Shutdown()
		listening.Await(connectivity.Shutdown)
		checked, _ := c.NewSubConn(cc, "checked", addresses(s...), balancer.NewSubConnOptions{HealthCheckEnabled: true})
		checked.Connect()
		checked.Await(connectivity.TransientFailure)
		h.SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
		checked.Await(connectivity.Ready)
	}},
	{Name: "credentials of a SubConn", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h, config := c.Held()
		client, _ := c.Balance(config, addresses(s...))
		client.Connect()
		cc := h.ClientConn()
		b := bundle{c.clientCreds(), perRPC{c.Named("credentials"), false}}
		//lint:ignore SA1019 grpclb sets it
		one, _ := c.NewSubConn(cc, "one", addresses(s...), balancer.NewSubConnOptions{CredsBundle: b})
		one.Connect()
		one.Await(connectivity.Ready)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Shown("call", c.Timeout(time.Second), client)
	}},
	{Name: "ExitIdle", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		h, config := c.Held()
		client, _ := c.Balance(config, addresses(c.Fleet()...))
		client.Connect()
		cc := h.ClientConn()
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Idle, Picker: picker(func(balancer.PickInfo) (balancer.PickResult, error) {
			return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
		})})
		c.Await(client, connectivity.Idle)
		before := h.exits.Load()
		client.Connect()
		c.Until("ExitIdle is called", func() bool { return h.exits.Load() > before })
		c.Note("ExitIdle is called")
	}},
	{Name: "policies that do not exist", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		for _, config := range []string{
			`{"loadBalancingConfig":[{"nobody_knows":{}}]}`, `{"loadBalancingConfig":[{"nobody_knows":{}},{"round_robin":{}}]}`, `{"loadBalancingConfig":[]}`,
			`{"loadBalancingConfig":[{}]}`, `{"loadBalancingConfig":[{"round_robin":{},"pick_first":{}}]}`, `{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":1}}]}`,
			`{"loadBalancingPolicy":"round_robin"}`, `{"loadBalancingPolicy":"nobody_knows"}`, `{"loadBalancingConfig":[{"weighted_round_robin":{"weightUpdatePeriod":1}}]}`,
			`{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":1}}]}`, `{"loadBalancingConfig":[{"outlier_detection_experimental":{"interval":"x"}}]}`,
			`{"loadBalancingConfig":[{"random_subsetting_experimental":{"subsetSize":0}}]}`, `{`, `[]`, `null`,
		} {
			r := c.Source("own")
			r.Addresses(addresses(s...)...)
			client, err := c.TryDial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: config})
			c.Err(config, err)
			if err == nil {
				c.Unary("call", c.ctx, client)
			}
		}
	}},
}

// weighted is a case in which servers report loads of 1 to 4 in trailers, or out of band.
func (c *C) weighted(outOfBand bool) {
	var fleet []*Server
	for i, load := range []float64{0.2, 0.4, 0.8} {
		m := orca.NewServerMetricsRecorder()
		m.SetCPUUtilization(load)
		m.SetQPS(100)
		s := c.Serve(fmt.Sprint("s", i), i, func(s *Server) {
			if outOfBand {
				s.Register = func(r grpc.ServiceRegistrar) {
					_ = orca.Register(r, orca.ServiceOptions{ServerMetricsProvider: m, MinReportingInterval: 50 * time.Millisecond})
				}
			}
		})
		if !outOfBand {
			s.Load(load)
		}
		fleet = append(fleet, s)
	}
	client, _ := c.Balance(policy("weighted_round_robin", fmt.Sprintf(`{"enableOobLoadReport":%v,"oobReportingPeriod":"0.1s","blackoutPeriod":"0s","weightUpdatePeriod":"0.1s"}`, outOfBand)), addresses(fleet...))
	c.Settle(client, 3)
	share := func() (s [3]float64) {
		before := [3]int64{fleet[0].calls.Load(), fleet[1].calls.Load(), fleet[2].calls.Load()}
		for range 70 {
			_, _ = unary(c.ctx, client)
		}
		for i := range s {
			s[i] = float64(fleet[i].calls.Load() - before[i])
		}
		return s
	}
	c.Until("shares are as the weights", func() bool {
		s := share()
		return math.Abs(s[0]-40) <= 3 && math.Abs(s[1]-20) <= 3 && math.Abs(s[2]-10) <= 3
	})
	c.Note("shares are as the weights")
}

// seen is a case that notes what a policy sees of its child while a server is lost and comes back.
func (c *C) seen(child string) {
	s := c.Fleet()
	client, r := c.Balance(c.Recording("policy", child), addresses(s...), func(o *Options) { o.Backoff = never })
	c.Unary("call", c.ctx, client)
	s[0].Down()
	c.Until("calls fail", func() bool { _, err := unary(c.ctx, client); return err != nil && r.asked.Load() >= 2 })
	c.Await(client, connectivity.TransientFailure)
	c.Unary("refused", c.ctx, client)
	s[0].Start()
	client.ResetConnectBackoff()
	c.Unary("back", c.ctx, client, grpc.WaitForReady(true))
	c.Err("close", client.Close())
}

// only removes the other lines of an actor than those that begin with one of the prefixes.
func (c *C) only(actor string, prefixes ...string) {
	a := c.Named(actor)
	c.mu.Lock()
	defer c.mu.Unlock()
	var kept []string
	for _, l := range a.lines {
		for _, p := range prefixes {
			if strings.HasPrefix(l, p) {
				kept = append(kept, l)
			}
		}
	}
	a.lines = kept
}

// noted returns how many lines of an actor begin with prefix.
func (c *C) noted(actor, prefix string) int {
	a := c.Named(actor)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, l := range a.lines {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// trailerOf returns the cases' own keys of a trailer.
func trailerOf(md metadata.MD) string {
	var out []string
	for k, v := range md {
		if k == "trailer" || k == "served-by" {
			out = append(out, fmt.Sprintf("%s=%q", k, v))
		}
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// brokenCreds have no metadata for calls.
type brokenCreds struct{}

func (brokenCreds) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, errors.New("there are no credentials")
}

func (brokenCreds) RequireTransportSecurity() bool { return false }

// A bundle is what its fields say.
type bundle struct {
	transport credentials.TransportCredentials
	call      credentials.PerRPCCredentials
}

func (b bundle) TransportCredentials() credentials.TransportCredentials { return b.transport }
func (b bundle) PerRPCCredentials() credentials.PerRPCCredentials       { return b.call }
func (b bundle) NewWithMode(mode string) (credentials.Bundle, error)    { return b, nil }

// A producerBuilder builds what it gets.
type producerBuilder struct {
	*Actor
	closed chan struct{}
}

// Build implements [balancer.ProducerBuilder].
func (b *producerBuilder) Build(cci any) (balancer.Producer, func()) {
	b.Note("build")
	return cci, func() {
		b.Note("close")
		b.closed <- struct{}{}
	}
}
