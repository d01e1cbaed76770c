package targets

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

func TestStates(t *testing.T) { run(t, stateCases) }

var stateCases = []Case{
	{Name: "states", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			s[0].Hold()
			client, _ := c.Balance(p, addresses(s...), func(o *Options) { o.Backoff = never })
			c.Note("first: %v", client.GetState())
			client.Connect()
			c.Await(client, connectivity.Connecting)
			s[0].Resume()
			c.Await(client, connectivity.Ready)
			client.Connect()
			c.Unary("call", c.ctx, client)
			s[0].Down()
			if p == pickFirst {
				c.Await(client, connectivity.Idle)
				client.Connect()
			}
			c.Await(client, connectivity.TransientFailure)
			s[0].Start()
			c.Note("in the backoff: %v", client.GetState())
			client.ResetConnectBackoff()
			c.Await(client, connectivity.Ready)
			c.Err("close", client.Close())
			c.Note("last: %v", client.GetState())
		}
	}},
	{Name: "several servers", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		for _, s := range s {
			s.Hold()
		}
		client, _ := c.Balance(roundRobin, addresses(s...), func(o *Options) { o.Backoff = never })
		client.Connect()
		c.Await(client, connectivity.Connecting)
		s[1].Resume()
		c.Await(client, connectivity.Ready)
		c.Spread("one is ready", client, 3)
		s[1].Down()
		c.Await(client, connectivity.Connecting)
		s[0].Resume()
		s[2].Resume()
		c.Await(client, connectivity.Ready)
		c.Settle(client, 2)
		s[0].Down()
		s[2].Down()
		c.Await(client, connectivity.TransientFailure)
		s[1].Start()
		client.ResetConnectBackoff()
		c.Await(client, connectivity.Ready)
		c.Spread("one is back", client, 3)
	}},
	{Name: "WaitForStateChange", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		client, _ := c.Balance(pickFirst, addresses(c.Fleet()...))
		c.Note("no change: %v", client.WaitForStateChange(c.Timeout(20*time.Millisecond), connectivity.Idle))
		c.Note("another state: %v", client.WaitForStateChange(c.ctx, connectivity.Ready))
		changed := make(chan bool)
		go func() { changed <- client.WaitForStateChange(c.ctx, connectivity.Idle) }()
		client.Connect()
		c.Note("change: %v", <-changed)
		c.Await(client, connectivity.Ready)
		go func() { changed <- client.WaitForStateChange(c.ctx, connectivity.Ready) }()
		client.Close()
		c.Note("close: %v", <-changed)
		c.Note("after close: %v", client.WaitForStateChange(c.Timeout(20*time.Millisecond), connectivity.Shutdown))
		client.Connect()
		client.ResetConnectBackoff()
		c.Note("still %v", client.GetState())
	}},
	{Name: "calls in each state", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			s[0].Hold()
			client, _ := c.Balance(p, addresses(s...), func(o *Options) { o.Backoff = never })
			in := func(state string) {
				for _, wait := range []bool{false, true} {
					c.Unary(fmt.Sprint(state, ", unary, wait ", wait), c.Timeout(50*time.Millisecond), client, grpc.WaitForReady(wait))
					_, err := pb.NewTestServiceClient(client).FullDuplexCall(c.Timeout(50*time.Millisecond), grpc.WaitForReady(wait))
					c.Err(fmt.Sprint(state, ", stream, wait ", wait), err)
					ctx, cancel := context.WithCancel(c.ctx)
					time.AfterFunc(c.Lasting(10*time.Millisecond), cancel)
					_, err = unary(ctx, client, grpc.WaitForReady(wait))
					if state != "READY" {
						c.Err(fmt.Sprint(state, ", cancelled, wait ", wait), err)
					}
				}
			}
			in("IDLE, then CONNECTING")
			in("CONNECTING")
			s[0].Resume()
			c.Unary("READY", c.ctx, client)
			s[0].Down()
			c.Until("calls fail", func() bool {
				_, err := unary(c.ctx, client)
				return err != nil && client.GetState() == connectivity.TransientFailure
			})
			in("TRANSIENT_FAILURE")
			s[0].Start()
			go func() {
				c.Pause(c.Lasting(10 * time.Millisecond))
				client.ResetConnectBackoff()
			}()
			c.Unary("wait for READY", c.ctx, client, grpc.WaitForReady(true))
			client.Close()
			in("SHUTDOWN")
		}
	}},
	{Name: "contexts that are done", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...))
		cancelled, cancel := context.WithCancel(c.ctx)
		cancel()
		past, cancel := context.WithDeadline(c.ctx, time.Now().Add(-time.Second))
		defer cancel()
		for _, state := range []string{"IDLE", "READY"} {
			c.Unary(state+", cancelled", cancelled, client)
			c.Unary(state+", past", past, client)
			_, err := pb.NewTestServiceClient(client).FullDuplexCall(cancelled)
			c.Err(state+", stream, cancelled", err)
			_, err = pb.NewTestServiceClient(client).FullDuplexCall(past)
			c.Err(state+", stream, past", err)
			c.Unary("call", c.ctx, client)
		}
		c.Note("%d calls", s[0].calls.Load())
	}},
	{Name: "no name is resolved", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		for _, wait := range []bool{false, true} {
			client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{c.Source("own")}})
			c.Unary("unary", c.Timeout(30*time.Millisecond), client, grpc.WaitForReady(wait))
			_, err := pb.NewTestServiceClient(client).FullDuplexCall(c.Timeout(30*time.Millisecond), grpc.WaitForReady(wait))
			c.Err("stream", err)
			ctx, cancel := context.WithCancel(c.ctx)
			time.AfterFunc(c.Lasting(10*time.Millisecond), cancel)
			c.Unary("cancelled", ctx, client, grpc.WaitForReady(wait))
			c.Note("state %v", client.GetState())
			result := make(chan error, 1)
			go func() { result <- lastly(unary(c.ctx, client, grpc.WaitForReady(wait))) }()
			c.Pause(c.Lasting(5 * time.Millisecond))
			client.Close()
			c.Err("closed", <-result)
		}
	}},
	{Name: "an attempt that takes too long", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		s[0].Hold()
		client, _ := c.Balance(pickFirst, addresses(s...), func(o *Options) { o.Backoff, o.ConnectTimeout = time.Millisecond, c.Lasting(200*time.Millisecond) })
		c.Code("call", lastly(unary(c.ctx, client)))
		c.Await(client, connectivity.TransientFailure)
		s[0].Resume()
		c.Unary("wait", c.ctx, client, grpc.WaitForReady(true))
	}},
	{Name: "each SubConn has its backoff", Sizes: []int{3}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		dead, gone := c.refused("dead"), c.refused("gone")
		var mu sync.Mutex
		dials := map[string]int{}
		count := func() string {
			mu.Lock()
			defer mu.Unlock()
			named := map[string]int{}
			for a, n := range dials {
				named[c.Text(a)] = n
			}
			return counts(named)
		}
		client, _ := c.Balance(c.Recording("policy", `{"round_robin":{}}`), append(addresses(s...), dead, gone), func(o *Options) {
			o.Backoff = never
			o.Dialer = func(ctx context.Context, a string) (net.Conn, error) {
				mu.Lock()
				dials[a]++
				mu.Unlock()
				return new(net.Dialer).DialContext(ctx, "tcp", a)
			}
		})
		c.Settle(client, 3)
		for i := range 3 {
			c.Until("both attempts have failed", func() bool {
				return c.noted("subconn dead", "TRANSIENT_FAILURE") > i && c.noted("subconn gone", "TRANSIENT_FAILURE") > i
			})
			c.Note("dials: %s", count())
			mu.Lock()
			delete(dials, dead.Addr)
			delete(dials, gone.Addr)
			mu.Unlock()
			c.Note("9 calls reach %d", reached(c.ctx, client, 9))
			if i < 2 {
				client.ResetConnectBackoff()
			}
		}
		client.Close()
		c.only("policy")
		c.only("subconn dead", "TRANSIENT_FAILURE")
		c.only("subconn gone", "TRANSIENT_FAILURE")
	}},
	{Name: "attempts go on", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		s[0].Down()
		for _, p := range []string{pickFirst, roundRobin} {
			var dials atomic.Int64
			client, _ := c.Balance(p, addresses(s...), func(o *Options) {
				o.Backoff = time.Millisecond
				o.Dialer = func(ctx context.Context, a string) (net.Conn, error) {
					dials.Add(1)
					return new(net.Dialer).DialContext(ctx, "tcp", a)
				}
			})
			client.Connect()
			c.Until("there are several attempts", func() bool { return dials.Load() >= 5 })
			c.Note("state %v", client.GetState())
			c.Unary("call", c.ctx, client)
			client.Close()
		}
	}},
	{Name: "idle", Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, addresses(s...), func(o *Options) { o.IdleTimeout = c.Lasting(30 * time.Millisecond) })
			c.Note("builds %d, state %v", r.builds.Load(), client.GetState())
			for range 2 {
				c.Code("call", lastly(unary(c.ctx, client)))
				c.Await(client, connectivity.Idle)
				c.Until("connections end", func() bool {
					n := int64(0)
					for _, s := range s {
						n += s.conns.Load()
					}
					return n == 0 && r.closes.Load() == r.builds.Load() // which grpc-go does later
				})
				c.Note("builds %d, closes %d", r.builds.Load(), r.closes.Load())
			}
			st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
			c.Err("stream", err)
			c.Pause(c.Lasting(150 * time.Millisecond))
			c.Note("with a stream: %v", client.GetState())
			_ = st.CloseSend()
			_, err = st.Recv()
			c.Err("end", err)
			c.Await(client, connectivity.Idle)
			client.Connect()
			c.Until("the resolver is built", func() bool { return r.builds.Load() == 4 })
			c.Until("the resolver is closed", func() bool { return r.closes.Load() == 4 })
			c.Await(client, connectivity.Idle)
			client.Close()
			c.Note("builds %d, closes %d, state %v", r.builds.Load(), r.closes.Load(), client.GetState())
		}
	}},
	{Name: "idle under load", Sizes: []int{3}, Run: func(c *C) {
		// Pauses between calls are about as long as the timeout.
		client, _ := c.Balance(roundRobin, addresses(c.Fleet()...), func(o *Options) { o.IdleTimeout = 2 * time.Millisecond })
		got := map[string]int{}
		for i := range 60 {
			_, err := unary(c.ctx, client)
			got[describe(err)]++
			c.Pause(time.Duration(i%5) * time.Millisecond)
		}
		c.Note("calls: %s", counts(got))
		client.Close()
		c.only("resolver") // how often it was idle depends on timing
	}},
	{Name: "a wait for a handler is not idle", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...), func(o *Options) { o.IdleTimeout = c.Lasting(20 * time.Millisecond) })
		result := make(chan error, 1)
		go func() { result <- lastly(unary(c.with("wait", "1"), client)) }()
		c.Until("the handler waits", func() bool { return s[0].Waiting() == 1 })
		c.Pause(c.Lasting(100 * time.Millisecond))
		c.Note("state %v", client.GetState())
		s[0].Release()
		c.Err("call", <-result)
	}},
	{Name: "Close during calls", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(roundRobin, addresses(s...))
		c.Unary("call", c.ctx, client)
		st := c.Stream("stream", c.ctx, client)
		result := make(chan error, 1)
		go func() { result <- lastly(unary(c.with("wait", "1"), client)) }()
		c.Until("the handler waits", func() bool { return s[0].Waiting() == 1 })
		client.Close()
		c.Err("unary", <-result)
		_, err := st.Recv()
		c.Err("stream", err)
		_, err = pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
		c.Err("new stream", err)
		c.Until("the handler's context ends", func() bool { return s[0].Waiting() == 0 })
	}},
	{Name: "Close while calls wait", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		s[0].Hold()
		for _, address := range []resolver.Address{s[0].address(), c.refused("dead")} {
			client, r := c.Balance(roundRobin, []resolver.Address{address}, func(o *Options) { o.Backoff = never })
			results := make(chan error, 2)
			go func() { results <- lastly(unary(c.ctx, client, grpc.WaitForReady(true))) }()
			go func() {
				_, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx, grpc.WaitForReady(true))
				results <- err
			}()
			c.Until("the resolver is built", func() bool { return r.builds.Load() == 1 })
			c.Await(client, map[bool]connectivity.State{true: connectivity.Connecting, false: connectivity.TransientFailure}[address.Addr == s[0].Addr])
			client.Close()
			c.Err("one", <-results)
			c.Err("other", <-results)
		}
	}},
	{Name: "Close under load", Fleets: everywhere, Sizes: []int{3}, Run: func(c *C) {
		client, _ := c.Balance(roundRobin, addresses(c.Fleet()...))
		c.Settle(client, 3)
		load := c.Load(8, client)
		load.More(100)
		client.Close()
		load.More(8)
		load.stop.Store(true)
		load.wg.Wait()
		for text := range load.ended {
			c.Note("failed: %s", text)
		}
	}},
	{Name: "GracefulStop under load", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(roundRobin, addresses(s...))
		c.Settle(client, 3)
		load := c.Load(6, client)
		for i := range 3 {
			load.More(30)
			s[i].GracefulStop()
			load.More(30)
			s[i].Down()
			s[i].Start()
			c.Until("the server is back", func() bool { return s[i].conns.Load() > 0 })
		}
		load.Stop("load")
		c.Note("the resolver is asked: %v", r.asked.Load() > 0)
		c.Settle(client, 3)
		c.Spread("calls", client, 9)
	}},
	{Name: "GracefulStop of the only server under load", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...))
		c.Unary("call", c.ctx, client)
		load := c.Load(4, client, grpc.WaitForReady(true))
		load.More(20)
		s[0].GracefulStop()
		s[0].Down()
		s[0].Start()
		load.More(20)
		load.Stop("load")
	}},
	{Name: "Stop under load", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(roundRobin, addresses(s...))
		c.Settle(client, 3)
		load := c.Load(6, client)
		for i := range 3 {
			load.More(30)
			s[i].Down()
			load.More(60)
			s[i].Start()
			c.Until("the server is back", func() bool { return s[i].conns.Load() > 0 })
		}
		load.stop.Store(true)
		load.wg.Wait()
		failed, unavailable := 0, true
		for text, n := range load.ended {
			failed += n
			unavailable = unavailable && text[:len("Unavailable")] == "Unavailable"
		}
		c.Note("at most a call of each caller fails at each stop: %v, with Unavailable: %v", failed <= 3*6, unavailable)
		c.Settle(client, 3)
		c.Spread("calls", client, 9)
	}},
	{Name: "Stop under load with a retry policy", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(`{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.01s","maxBackoff":"0.01s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`, addresses(s...))
		c.Settle(client, 3)
		load := c.load(6, func() error {
			var header metadata.MD
			_, err := unary(c.ctx, client, grpc.Header(&header))
			if header != nil { // it cannot be retried any more
				return nil
			}
			return err
		})
		for i := range 3 {
			load.More(30)
			s[i].Down()
			load.More(60)
			s[i].Start()
			c.Until("the server is back", func() bool { return s[i].conns.Load() > 0 })
		}
		load.Stop("load")
	}},
	{Name: "a server that comes back", Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(roundRobin, addresses(s...), func(o *Options) { o.Backoff = 5 * time.Millisecond })
		for range 3 {
			c.Settle(client, c.Size)
			st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
			if err == nil {
				err = st.Send(&pb.StreamingOutputCallRequest{})
			}
			c.Err("stream", err)
			m, _ := st.Recv()
			for _, s := range s {
				if string(m.GetPayload().GetBody()) == s.Name {
					s.Down()
					_, err = st.Recv()
					c.Code("lost", err)
					s.Start()
				}
			}
		}
		c.Settle(client, c.Size)
		c.Spread("calls", client, 3*c.Size)
	}},
	{Name: "GracefulStop with a stream", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...))
		st := c.Stream("stream", c.ctx, client)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s[0].GracefulStop()
		}()
		c.Until("calls go elsewhere", func() bool { id, err := unary(c.ctx, client); return err == nil && id == "s1" })
		c.Ping("the stream goes on", st)
		c.Note("stopped: %v", isClosed(stopped))
		c.Finish("end", st)
		<-stopped
	}},
	{Name: "connections of a limited age", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet(func(s *Server) { s.Age = 100 * time.Millisecond })
		client, r := c.Balance(roundRobin, addresses(s...))
		c.Until("all servers have served calls", func() bool {
			return reached(c.ctx, client, 1) == 1 && s[0].calls.Load() > 0 && s[1].calls.Load() > 0 && s[2].calls.Load() > 0
		})
		load := c.Load(4, client)
		c.Until("the resolver is asked", func() bool { return r.asked.Load() >= 9 })
		load.Stop("load")
	}},
	{Name: "peers", Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(roundRobin, addresses(s...))
		c.Settle(client, c.Size)
		for range 3 {
			var p peer.Peer
			id, err := unary(c.ctx, client, grpc.Peer(&p))
			if err != nil {
				c.Err("call", err)
				continue
			}
			c.Note("the peer is who served the call: %v, network %s, security %s", c.Text(p.Addr.String()) == id, p.Addr.Network(), p.AuthInfo.AuthType())
		}
	}},
	{Name: "interceptors and Target", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(pickFirst, addresses(s...), func(o *Options) {
			o.Unary = []grpc.UnaryClientInterceptor{func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				c.Note("%s, target %q, canonical %q, state %v", method, cc.Target(), cc.CanonicalTarget(), cc.GetState())
				err := invoker(ctx, method, req, reply, cc, opts...)
				c.Await(cc, connectivity.Ready)
				return err
			}}
		})
		c.Unary("call", c.ctx, client)
	}},
	{Name: "per-RPC credentials", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, secure := range []bool{false, true} {
			client, _ := c.Balance(pickFirst, addresses(s...), func(o *Options) { o.Creds = c.clientCreds() })
			creds := perRPC{c.Named("credentials"), secure}
			c.Shown(fmt.Sprint("secure ", secure), c.ctx, client, grpc.PerRPCCredentials(creds))
			if c.TLS || !secure {
				client, _ = c.Balance(pickFirst, addresses(s...), func(o *Options) { o.PerRPC = []credentials.PerRPCCredentials{creds} })
				c.Shown("of the client", c.ctx, client)
			}
		}
	}},
	{Name: "credentials that need TLS", Sizes: []int{1}, Plain: true, Differs: "the error names nearcall.WithTransportCredentials", Run: func(c *C) {
		_, err := c.TryDial("passthrough:///svc", Options{PerRPC: []credentials.PerRPCCredentials{perRPC{c.Named("credentials"), true}}})
		c.Err("dial", err)
	}},
}

// perRPC are credentials that note what they get.
type perRPC struct {
	*Actor
	secure bool
}

func (p perRPC) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	p.Note("%q, method %s, security %s", uri, info.Method, info.AuthInfo.AuthType())
	if info.Method == "" {
		return nil, status.Error(codes.Unauthenticated, "no method")
	}
	return map[string]string{"show": "credentials"}, nil
}

func (p perRPC) RequireTransportSecurity() bool { return p.secure }
