package targets

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
)

func TestConfigs(t *testing.T) { run(t, configCases) }

// retries is a method config with a retry policy.
const retries = `"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]`

var configCases = []Case{
	{Name: "default and resolved", Fleets: everywhere, Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		for _, disable := range []bool{false, true} {
			client, r := c.Balance(roundRobin, addresses(s...), func(o *Options) { o.DisableServiceConfig = disable })
			c.Settle(client, 3)
			c.Note("default: %d", reached(c.ctx, client, 9))
			r.Config(`{}`, addresses(s...)...)
			c.Note("an empty one: %d", c.steady(client, map[bool]int{false: 1, true: 3}[disable]))
			r.Config(roundRobin, addresses(s...)...)
			c.Settle(client, 3)
			r.Config(pickFirst, addresses(s...)...)
			c.Note("pick_first: %d", c.steady(client, map[bool]int{false: 1, true: 3}[disable]))
			r.Addresses(addresses(s...)...)
			c.Note("no config: %d", reached(c.ctx, client, 9))
			c.Err("close", client.Close())
		}
	}},
	{Name: "a bad config first", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, config := range []string{``, roundRobin} {
			for _, bad := range []string{`{`, `{"loadBalancingConfig":[{"nobody_knows":{}}]}`, `{"methodConfig":[{"name":[{"service":""}]},{"name":[{}]}]}`, `{"methodConfig":[{"name":[{}],"timeout":"1"}]}`} {
				r := c.Source("own")
				client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: config})
				client.Connect()
				c.Until("the resolver is built", func() bool { return r.ClientConn() != nil })
				r.Config(bad, addresses(s...)...)
				c.Unary(bad, c.ctx, client)
				c.Unary("wait", c.Timeout(20*time.Millisecond), client, grpc.WaitForReady(true))
				c.Await(client, connectivity.TransientFailure)
				r.Config(roundRobin, addresses(s...)...)
				c.Unary("a good one", c.ctx, client, grpc.WaitForReady(true))
				r.Config(bad, addresses(s...)...)
				c.Unary("the good one stays", c.ctx, client)
			}
		}
	}},
	{Name: "a bad config with new addresses", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(roundRobin, addresses(s[0]))
		c.Unary("call", c.ctx, client)
		r.Config(roundRobin, addresses(s[0], s[1])...)
		c.Settle(client, 2)
		r.Config(`{`, addresses(s...)...)
		c.Settle(client, 3)
		c.Spread("the addresses count", client, 9)
	}},
	{Name: "policies that change under load", Fleets: everywhere, Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance("", addresses(s...))
		c.Unary("call", c.ctx, client)
		load := c.Load(4, client)
		for range 3 {
			for _, p := range []string{roundRobin, policy("least_request_experimental", `{"choiceCount":2}`), pickFirst, asking, policy("random_subsetting_experimental", `{"subsetSize":2,"childPolicy":[{"round_robin":{}}]}`)} {
				r.Config(p, addresses(s...)...)
				load.More(20)
			}
		}
		r.Config(roundRobin, addresses(s...)...)
		load.More(20)
		load.Stop("load")
		c.Settle(client, 3)
		c.Note("12 calls reach %d", c.steady(client, 3)) // a policy can still replace the last one
	}},
	{Name: "a policy replaces another when it is ready", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(pickFirst, addresses(s[0]))
		c.Unary("old", c.ctx, client)
		s[1].Hold()
		h, held := c.Held()
		r.Config(held, addresses(s[1])...)
		cc := h.ClientConn()
		one, _ := c.NewSubConn(cc, "one", addresses(s[1]), balancer.NewSubConnOptions{})
		one.Connect()
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Connecting, Picker: to(one)})
		c.Spread("the old one still serves", client, 3)
		c.Note("state %v", client.GetState())
		s[1].Resume()
		one.Await(connectivity.Ready)
		c.Spread("it is not told yet", client, 3)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.Ready, Picker: to(one)})
		c.Until("the old connection ends", func() bool { return s[0].conns.Load() == 0 })
		c.Spread("the new one serves", client, 3)
		// A policy that is lost gives way at once.
		r.Config(roundRobin, addresses(s[2])...)
		cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: to(one)})
		c.Until("the third serves", func() bool { id, _ := unary(c.ctx, client, grpc.WaitForReady(true)); return id == "s2" })
		c.Spread("the third", client, 3)
	}},
	{Name: "methods", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance("", addresses(s...))
		c.Unary("call", c.ctx, client)
		for _, config := range []string{
			`{"methodConfig":[{"name":[{"service":"grpc.testing.TestService"}],"timeout":"0.05s"}]}`,
			`{"methodConfig":[{"name":[{"service":"grpc.testing.TestService","method":"UnaryCall"}],"timeout":"0.05s"},{"name":[{}],"timeout":"10s"}]}`,
			`{"methodConfig":[{"name":[{"service":"other"}],"timeout":"0.001s"},{"name":[{}],"timeout":"0.05s"}]}`,
		} {
			r.Config(config, addresses(s...)...)
			_, err := unary(c.with("wait", "1"), client)
			c.Code("unary", err)
			if st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.with("wait", "1")); err != nil {
				c.Code("stream", err)
			} else if config[len(config)-5:] != `10s"}` {
				_, err = st.Recv()
				c.Code("end of the stream", err)
			}
		}
		r.Config(`{"methodConfig":[{"name":[{}],"maxRequestMessageBytes":50,"maxResponseMessageBytes":60}]}`, addresses(s...)...)
		for _, size := range []int{20, 52, 100} {
			_, err := pb.NewTestServiceClient(client).UnaryCall(c.ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, size)}})
			c.Err(fmt.Sprint(size, " bytes"), err)
			_, err = pb.NewTestServiceClient(client).UnaryCall(c.ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: make([]byte, size)}}, grpc.MaxCallSendMsgSize(10), grpc.MaxCallRecvMsgSize(1000))
			c.Err("and an option", err)
		}
		r.Config(`{"methodConfig":[{"name":[{}],"waitForReady":true}]}`, c.refused("dead"))
		c.Await(client, connectivity.TransientFailure)
		c.Unary("wait for ready", c.Timeout(30*time.Millisecond), client)
		c.Code("the call's option", lastly(unary(c.ctx, client, grpc.WaitForReady(false))))
	}},
	{Name: "retries", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, disable := range []bool{false, true} {
			client, r := c.Balance("", addresses(s...), func(o *Options) { o.DisableRetry = disable })
			c.Unary("no policy", c.with("fail-first", "1"), client)
			r.Config(`{`+retries+`}`, addresses(s...)...)
			c.Unary("retried", c.with("fail-first", "1"), client)
			before := s[0].calls.Load()
			c.Unary("all attempts", c.with("fail", fmt.Sprint(int(codes.Unavailable))), client)
			c.Unary("another code", c.with("fail", fmt.Sprint(int(codes.Internal))), client)
			c.Note("%d attempts", s[0].calls.Load()-before)
			st := c.Stream("stream", c.with("fail-first", "1"), client)
			c.Finish("end", st)
			r.Config(`{}`, addresses(s...)...)
			c.Unary("no policy again", c.with("fail-first", "1"), client)
		}
	}},
	{Name: "retries go to other servers", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(`{"loadBalancingConfig":[{"round_robin":{}}],`+retries+`}`, addresses(s...))
		c.Settle(client, 3)
		for range 6 {
			before := [3]int64{s[0].calls.Load(), s[1].calls.Load(), s[2].calls.Load()}
			c.Code("call", lastly(unary(c.with("fail", fmt.Sprint(int(codes.Unavailable))), client)))
			for i, s := range s {
				c.Note("%s: %d attempts", s.Name, s.calls.Load()-before[i])
			}
		}
	}},
	{Name: "retryThrottling", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance("", addresses(s...))
		c.Unary("call", c.ctx, client)
		attempts := func(label string) {
			before := s[0].calls.Load()
			c.Code(label, lastly(unary(c.with("fail", fmt.Sprint(int(codes.Unavailable))), client)))
			c.Note("%d attempts", s[0].calls.Load()-before)
		}
		throttled := `{"retryThrottling":{"maxTokens":4,"tokenRatio":0.5},` + retries + `}`
		r.Config(throttled, addresses(s...)...)
		for range 3 {
			attempts("throttled")
		}
		r.Config(throttled, addresses(s...)...)
		attempts("the same config again")
		r.Config(`{"retryThrottling":{"maxTokens":4,"tokenRatio":0.6},`+retries+`}`, addresses(s...)...)
		attempts("another ratio")
		r.Config(`{`+retries+`}`, addresses(s...)...)
		attempts("none")
		attempts("none")
		r.Config(throttled, addresses(s...)...)
		attempts("again")
		for range 5 {
			c.Unary("success", c.ctx, client)
		}
		attempts("after successes")
		for _, bad := range []string{`{"retryThrottling":{"maxTokens":0,"tokenRatio":0.5}}`, `{"retryThrottling":{"maxTokens":1001,"tokenRatio":0.5}}`, `{"retryThrottling":{"maxTokens":4,"tokenRatio":0}}`} {
			r.Config(bad, addresses(s...)...)
		}
	}},
	{Name: "a config that changes while calls run", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance("", addresses(s...))
		c.Unary("call", c.ctx, client)
		result := make(chan error, 1)
		go func() { result <- lastly(unary(c.with("wait", "1", "fail-first", "1"), client)) }()
		c.Until("the handler waits", func() bool { return s[0].Waiting() == 1 })
		r.Config(`{"loadBalancingConfig":[{"round_robin":{}}],"methodConfig":[{"name":[{}],"timeout":"0.001s","retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`, addresses(s...)...)
		c.Until("the new config applies", func() bool {
			ctx, cancel := context.WithTimeout(c.with("wait", "1"), time.Second)
			defer cancel()
			begun := time.Now()
			_, _ = unary(ctx, client)
			return time.Since(begun) < time.Second
		})
		s[0].Release()
		c.Err("the old call has the old config", <-result)
	}},
	{Name: "health", Sizes: []int{3}, Run: func(c *C) {
		s, h := c.healthy()
		client, r := c.Balance(`{"healthCheckConfig":{"serviceName":"x"},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...), func(o *Options) { o.Backoff = time.Millisecond })
		c.Settle(client, 3)
		h[1].SetServingStatus("x", healthpb.HealthCheckResponse_NOT_SERVING)
		c.Note("one does not serve: %d", c.steady(client, 2))
		h[1].SetServingStatus("x", healthpb.HealthCheckResponse_UNKNOWN)
		c.Note("it is unknown: %d", c.steady(client, 2))
		h[1].SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
		c.Note("it serves again: %d", c.steady(client, 3))
		for _, h := range h {
			h.SetServingStatus("x", healthpb.HealthCheckResponse_NOT_SERVING)
		}
		c.Await(client, connectivity.TransientFailure)
		c.Unary("none serves", c.ctx, client)
		c.Unary("wait", c.Timeout(30*time.Millisecond), client, grpc.WaitForReady(true))
		h[2].SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
		c.Await(client, connectivity.Ready)
		c.Spread("one serves", client, 3)
		r.Config(roundRobin, addresses(s...)...)
		c.Note("a config without health: %d", reached(c.ctx, client, 12))
	}},
	{Name: "health, disabled", Sizes: []int{1}, Run: func(c *C) {
		s, h := c.healthy()
		h[0].SetServingStatus("x", healthpb.HealthCheckResponse_NOT_SERVING)
		client, _ := c.Balance(`{"healthCheckConfig":{"serviceName":"x"},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...), func(o *Options) { o.DisableHealthCheck = true })
		c.Unary("disabled", c.ctx, client)
		client, _ = c.Balance(`{"healthCheckConfig":{"serviceName":"x"}}`, addresses(s...))
		c.Unary("pick_first checks no health", c.ctx, client)
		client, _ = c.Balance(`{"healthCheckConfig":{"serviceName":"x"},"loadBalancingConfig":[{"asking":{}}]}`, addresses(s...))
		c.Unary("a policy that checks it", c.Timeout(50*time.Millisecond), client)
		c.Await(client, connectivity.TransientFailure)
		client, _ = c.Balance(`{"healthCheckConfig":{"serviceName":"unknown"},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...))
		c.Unary("an unknown service", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
		client, _ = c.Balance(`{"healthCheckConfig":{"serviceName":""},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...))
		c.Unary("the whole server", c.ctx, client)
		client, _ = c.Balance(`{"healthCheckConfig":{},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...))
		c.Unary("no name", c.ctx, client)
	}},
	{Name: "a server without health", Run: func(c *C) {
		s := c.Fleet()
		client, _ := c.Balance(`{"healthCheckConfig":{"serviceName":"x"},"loadBalancingConfig":[{"round_robin":{}}]}`, addresses(s...))
		c.Settle(client, c.Size)
		c.Spread("it counts as healthy", client, 3*c.Size)
	}},
}

// healthy starts the setup's servers with a health service each, where "x" serves.
func (c *C) healthy() (servers []*Server, services []*health.Server) {
	servers = c.Fleet(func(s *Server) {
		h := health.NewServer()
		h.SetServingStatus("x", healthpb.HealthCheckResponse_SERVING)
		services = append(services, h)
		s.Register = func(r grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(r, h) }
	})
	return servers, services
}

// steady waits until 12 calls reach want servers, and returns what 12 more calls reach.
func (c *C) steady(client grpc.ClientConnInterface, want int) int {
	c.Until(fmt.Sprintf("calls reach %d", want), func() bool { return reached(c.ctx, client, 12) == want })
	return reached(c.ctx, client, 12)
}
