package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

func TestResolvers(t *testing.T) { run(t, resolverCases) }

var errIll = errors.New("the resolver is ill")

var resolverCases = []Case{
	{Name: "own scheme", Fleets: everywhere, Run: func(c *C) {
		client, r := c.Balance(roundRobin, addresses(c.Fleet()...))
		c.Settle(client, c.Size)
		c.Spread("calls", client, 6*c.Size)
		c.Note("target %q, state %v, builds %d", client.Target(), client.GetState(), r.builds.Load())
		c.Err("close", client.Close())
		c.Err("close again", client.Close())
		c.Unary("after close", c.ctx, client)
		c.Note("state %v, closes %d", client.GetState(), r.closes.Load())
		// Nothing hears the resolver any more.
		r.Addresses()
		r.Report(errIll)
	}},
	{Name: "grpc's manual resolver", Run: func(c *C) {
		r := manual.NewBuilderWithScheme("whatever")
		r.InitialState(resolver.State{Addresses: addresses(c.Fleet()...)})
		client := c.Dial("whatever:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: roundRobin})
		c.Settle(client, c.Size)
		c.Spread("calls", client, 6*c.Size)
		late := c.Serve("late", c.Size)
		r.UpdateState(resolver.State{Addresses: addresses(late)})
		c.Until("the new server serves calls", func() bool { return late.calls.Load() > 0 || reached(c.ctx, client, 1) < 0 })
		c.Spread("calls", client, 6)
	}},
	{Name: "registered scheme", Run: func(c *C) {
		name := fmt.Sprint("svc-", ips.Add(1))
		registered.Store("a/"+name, resolver.State{Addresses: addresses(c.Fleet()...)})
		c.Cleanup(func() { registered.Delete("a/" + name) })
		c.Call(name, "NAME")
		for _, target := range []string{"fleet:///a/%s", "FLEET:///a/%s", "fleet:a/%s", "fleet://x/a/%s", "fleet:///b/%s"} {
			client := c.Dial(fmt.Sprintf(target, name), Options{ServiceConfig: roundRobin, Authority: "svc.test"})
			c.Unary(fmt.Sprintf(target, "NAME"), c.ctx, client, grpc.WaitForReady(false))
			if target != "fleet:///b/%s" {
				c.Settle(client, c.Size)
				c.Spread("calls", client, 3*c.Size)
			}
		}
	}, Sizes: []int{1}},
	{Name: "a resolver hides those of its scheme", Run: func(c *C) {
		mine, other, global := c.Source("fleet"), c.Source("fleet"), c.Source("dns")
		s := c.Fleet()
		mine.Addresses(s[0].address())
		other.Addresses(c.refused("other"))
		global.Addresses(s[0].address())
		client := c.Dial("fleet:///svc", Options{Resolvers: []resolver.Builder{mine, other, global}})
		c.Unary("first of a scheme", c.ctx, client)
		c.Note("builds %d %d %d", mine.builds.Load(), other.builds.Load(), global.builds.Load())
		client = c.Dial("svc", Options{Resolvers: []resolver.Builder{mine, other, global}})
		c.Unary("no scheme", c.ctx, client)
		c.Note("builds %d %d %d", mine.builds.Load(), other.builds.Load(), global.builds.Load())
	}, Sizes: []int{1}},
	{Name: "passthrough", Run: func(c *C) {
		for _, s := range c.Fleet() {
			client := c.Dial("passthrough:///"+s.Addr, Options{})
			c.Unary("call", c.ctx, client)
			c.Authority("authority", client)
		}
		dead := c.refused("dead").Addr
		client := c.Dial("passthrough:///"+dead, Options{Backoff: never, Creds: c.clientCreds()})
		c.Unary("refused", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
		for _, target := range []string{"passthrough:///", "passthrough:///no-port", "passthrough:" + dead} {
			client, err := c.TryDial(target, Options{Backoff: never})
			c.Err("dial "+target, err)
			if err == nil {
				c.Unary("call", c.ctx, client)
			}
		}
	}},
	{Name: "passthrough to a unix socket", Fleets: []kind{unix}, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		client := c.Dial("passthrough:///"+s[0].Addr, Options{Authority: "svc.test"})
		c.Unary("call", c.ctx, client)
		client, _ = c.Balance(roundRobin, addresses(s...))
		c.Unary("resolved", c.ctx, client)
	}},
	{Name: "addresses that change", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{roundRobin, pickFirst} {
			client, r := c.Balance(p, addresses(s[0]))
			c.Unary("one", c.ctx, client)
			r.Addresses(addresses(s[1])...)
			c.Until("the old connection ends", func() bool { return s[0].conns.Load() == 0 })
			c.Spread("another", client, 3)
			r.Addresses(addresses(s[1], s[2])...)
			if p == roundRobin {
				c.Settle(client, 2)
				c.Spread("two", client, 6)
			} else {
				c.Spread("two, one of them as before", client, 6)
			}
			r.Addresses(addresses(s[2])...)
			c.Until("the old connection ends", func() bool { return s[1].conns.Load() == 0 })
			c.Spread("one is gone", client, 3)
			c.Err("close", client.Close())
			c.Until("all connections end", func() bool { return s[0].conns.Load()+s[1].conns.Load()+s[2].conns.Load() == 0 })
		}
	}},
	{Name: "addresses that change under load", Fleets: everywhere, Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(roundRobin, addresses(s...))
		c.Settle(client, 3)
		load := c.Load(4, client)
		for i := range 6 {
			load.More(20)
			r.Addresses(addresses(s[i%3], s[(i+1)%3])...)
			load.More(20)
			r.Addresses(addresses(s...)...)
		}
		load.More(20)
		load.Stop("load")
		c.Settle(client, 3)
		c.Spread("calls", client, 9)
	}},
	{Name: "a stream outlives its address", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(pickFirst, addresses(s[0]))
		st := c.Stream("stream", c.ctx, client)
		r.Addresses(addresses(s[1])...)
		c.Until("calls go to the new address", func() bool { id, _ := unary(c.ctx, client); return id == "s1" })
		c.Ping("the stream goes on", st)
		c.Finish("end", st)
		c.Until("the old connection ends", func() bool { return s[0].conns.Load() == 0 })
	}},
	{Name: "empty list first", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, nil)
			c.Unary("fail fast", c.ctx, client)
			c.Await(client, connectivity.TransientFailure)
			c.Unary("wait", c.Timeout(50*time.Millisecond), client, grpc.WaitForReady(true))
			r.Addresses(addresses(s...)...)
			c.Unary("addresses came", c.ctx, client, grpc.WaitForReady(true))
			c.Await(client, connectivity.Ready)
		}
	}},
	{Name: "empty list later", Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, addresses(s...))
			c.Settle(client, map[string]int{pickFirst: 1, roundRobin: c.Size}[p])
			r.Addresses()
			c.Unary("no addresses", c.ctx, client)
			c.Await(client, connectivity.TransientFailure)
			c.Until("connections end", func() bool {
				for _, s := range s {
					if s.conns.Load() > 0 {
						return false
					}
				}
				return true
			})
			r.Addresses(addresses(s[0])...)
			c.Unary("addresses came", c.ctx, client, grpc.WaitForReady(true))
			c.Err("close", client.Close())
		}
	}},
	{Name: "error before the first result", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin, ""} {
			r := c.Source("own")
			client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: p})
			c.Unary("no result", c.Timeout(50*time.Millisecond), client)
			c.Note("state %v", client.GetState())
			r.Report(errIll)
			c.Unary("fail fast", c.ctx, client)
			c.Unary("wait", c.Timeout(50*time.Millisecond), client, grpc.WaitForReady(true))
			c.Await(client, connectivity.TransientFailure)
			r.Addresses(addresses(s...)...)
			c.Unary("result", c.ctx, client, grpc.WaitForReady(true))
		}
	}},
	{Name: "error after the first result", Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, addresses(s...))
			c.Settle(client, map[string]int{pickFirst: 1, roundRobin: c.Size}[p])
			r.Report(errIll)
			c.Note("%s calls: %v", p, reached(c.ctx, client, 3) > 0)
			c.Note("state %v", client.GetState())
			for _, s := range s {
				s.Down()
			}
			c.Until("calls fail", func() bool { _, err := unary(c.ctx, client); return err != nil })
			for _, s := range s {
				s.Start()
			}
			c.Settle(client, map[string]int{pickFirst: 1, roundRobin: c.Size}[p])
		}
	}},
	{Name: "no addresses while the servers are down", Sizes: []int{1}, Run: func(c *C) {
		dead := c.refused("dead")
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, []resolver.Address{dead}, func(o *Options) { o.Backoff = never })
			// ReportError returns before the policy hears the error.
			report := func(message string) {
				r.Report(errIll)
				c.Until("calls fail with "+message, func() bool {
					_, err := unary(c.ctx, client)
					return strings.Contains(status.Convert(err).Message(), message)
				})
				c.Unary("error", c.ctx, client)
			}
			c.Unary("refused", c.ctx, client)
			report(errIll.Error())
			r.Addresses()
			c.Unary("empty", c.ctx, client)
			if p == pickFirst {
				report(errIll.Error())
			} else {
				report("no children") // nobody is left who keeps the error
			}
		}
	}},
	{Name: "Build fails", Sizes: []int{1}, Run: func(c *C) {
		r := c.Source("own")
		r.Fail(errIll)
		client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}})
		c.Unary("call", c.ctx, client)
		c.Await(client, connectivity.TransientFailure)
		c.Unary("wait", c.Timeout(50*time.Millisecond), client, grpc.WaitForReady(true))
		c.Stream("stream", c.ctx, client)
		client.Connect()
		r.Fail(nil)
		r.Addresses(addresses(c.Fleet()...)...)
		c.Unary("Build would work", c.ctx, client)
		c.Note("state %v, builds %v", client.GetState(), r.builds.Load() > 0)
	}},
	{Name: "Build fails after idle", Sizes: []int{1}, Run: func(c *C) {
		client, r := c.Balance(pickFirst, addresses(c.Fleet()...), func(o *Options) { o.IdleTimeout = 30 * time.Millisecond })
		c.Unary("call", c.ctx, client)
		c.Await(client, connectivity.Idle)
		c.Note("closes %d", r.closes.Load())
		r.Fail(errIll)
		c.Unary("call", c.ctx, client)
		c.Unary("wait", c.Timeout(50*time.Millisecond), client, grpc.WaitForReady(true))
	}},
	{Name: "ResolveNow", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, r := c.Balance(p, addresses(s...), func(o *Options) { o.Backoff = never })
			c.Unary("call", c.ctx, client)
			c.Note("connected: asked %d times", r.asked.Load())
			s[0].Down()
			if p == pickFirst { // which connects again for the next call
				c.Await(client, connectivity.Idle)
				c.Until("the resolver is asked", func() bool { return r.asked.Load() > 0 }) // grpc-go does that on another goroutine
				c.Note("lost: asked %d times", r.asked.Load())
			}
			c.Until("calls fail", func() bool { _, err := unary(c.ctx, client); return err != nil && r.asked.Load() >= 2 })
			c.Await(client, connectivity.TransientFailure)
			c.Note("refused: asked %d times", r.asked.Load())
			s[0].Start()
			client.ResetConnectBackoff()
			c.Unary("back", c.ctx, client, grpc.WaitForReady(true))
			c.Await(client, connectivity.Ready)
			c.Note("connected again: asked %d times", r.asked.Load())
			c.Err("close", client.Close())
		}
	}},
	{Name: "ResolveNow of several", Sizes: []int{3}, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(roundRobin, append(addresses(s...), c.refused("dead")), func(o *Options) { o.Backoff = never })
		c.Settle(client, 3)
		c.Until("the resolver is asked", func() bool { return r.asked.Load() > 0 })
		c.Note("one is refused: asked %d times", r.asked.Load())
		for i, want := range []int64{3, 5, 7} {
			s[i].Down()
			c.Until("the resolver is asked", func() bool { return r.asked.Load() >= want })
		}
		c.Await(client, connectivity.TransientFailure)
		c.Note("three are lost and refused: asked %d times", r.asked.Load())
	}},
	{Name: "server names of addresses", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, name := range []string{"other.test", "wrong.example", ""} {
			a := s[0].address()
			a.ServerName = name
			for _, authority := range []string{"", "set.test"} {
				client, _ := c.Balance(pickFirst, []resolver.Address{a}, func(o *Options) { o.Backoff, o.Authority = never, authority })
				c.Authority(fmt.Sprintf("server name %q, authority %q", name, authority), client)
				c.Authority("authority of a call", client, grpc.CallAuthority("call.test"))
			}
		}
	}},
	{Name: "attributes of addresses", Sizes: []int{1}, Run: func(c *C) {
		type key string
		s := c.Fleet()
		a := s[0].address()
		a.Attributes = attributes.New(key("address"), "1")
		client, _ := c.Balance(pickFirst, []resolver.Address{a}, func(o *Options) {
			o.Creds = attributed{c.clientCreds(), func(all *attributes.Attributes) {
				c.Named("credentials").Note("%v", all.Value(key("address")))
			}}
		})
		c.Unary("call", c.ctx, client)
	}},
	{Name: "metadata of addresses", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		a := s[0].address()
		//lint:ignore SA1019 it is deprecated, and resolvers use it
		a.Metadata = &metadata.MD{"show": {"old"}}
		client, _ := c.Balance(pickFirst, []resolver.Address{a})
		c.Shown("call", c.ctx, client)
	}},
	{Name: "several addresses of an endpoint", Fleets: everywhere, Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			r := c.Source("own")
			var state resolver.State
			for _, s := range s {
				state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{c.refused("dead"), s.address(), c.refused("dead")}})
			}
			r.Set(state)
			client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, ServiceConfig: p})
			if p == roundRobin {
				c.Settle(client, c.Size)
			}
			c.Spread("calls", client, 6*c.Size)
		}
	}},
	{Name: "addresses twice", Run: func(c *C) {
		s := c.Fleet()
		for _, p := range []string{pickFirst, roundRobin} {
			client, _ := c.Balance(p, append(addresses(s...), addresses(s...)...))
			if p == roundRobin {
				c.Settle(client, c.Size)
			}
			c.Spread("calls", client, 6*c.Size)
			for _, s := range s {
				c.Note("%s: %d connections", s.Name, s.conns.Load())
			}
			c.Err("close", client.Close())
			c.Until("connections end", func() bool {
				for _, s := range s {
					if s.conns.Load() > 0 {
						return false
					}
				}
				return true
			})
		}
	}},
	{Name: "NewAddress", Fleets: everywhere, Run: func(c *C) {
		s := c.Fleet()
		client, r := c.Balance(roundRobin, addresses(s[0]))
		c.Unary("call", c.ctx, client)
		//lint:ignore SA1019 it is deprecated, and resolvers use it
		r.ClientConn().NewAddress(addresses(s...))
		c.Settle(client, c.Size)
		c.Spread("calls", client, 3*c.Size)
	}},
	{Name: "a resolver that overrides the authority", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		r := overrider{c.Source("own")}
		r.Addresses(addresses(s...)...)
		c.Authority("overridden", c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}}))
		c.Authority("set", c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, Authority: "set.test"}))
	}},
	{Name: "targets and authorities", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		s := c.Fleet()
		for _, target := range []string{
			"svc", "svc:80", ":80", "127.9.9.9:80", "[::1]:80", "dns:svc", "dns:///svc", "dns:///svc:80", "dns://ns/svc:80", "dns:///:80",
			"own:///", "own:svc", "own:///a/b", "own:///a%2Fb", "own:///a b", "own:///a@b:1", "own:///a?q=1", "own:///é", "own://x/y", "own:///svc#f",
			"OWN:///svc", "grpc.example:80/path", "nosuch:///svc", "nosuch:svc", "/", "//svc", "a/b:c", "host%zone", "%zz", "own:///%zz", "://", "own", "own:",
		} {
			r, d := c.Source("own"), c.Source("dns")
			r.Addresses(addresses(s...)...)
			d.Addresses(addresses(s...)...)
			client, err := c.TryDial(target, Options{Resolvers: []resolver.Builder{r, d}})
			if err != nil {
				c.Err("dial "+target, err)
				continue
			}
			c.Named("resolver").Note("%q", target)
			c.Authority(fmt.Sprintf("%q", target), client)
			c.Note("target %q", client.Target())
		}
	}},
	{Name: "an empty target", Sizes: []int{1}, Plain: true, Differs: "NewClient refuses it, with an error that lists targets; grpc.NewClient does not, and each call fails", Run: func(c *C) {
		client, err := c.TryDial("", Options{})
		c.Err("dial", err)
		if err == nil {
			c.Unary("call", c.ctx, client)
		}
	}},
	{Name: "a set authority", Fleets: everywhere, Sizes: []int{1}, Run: func(c *C) {
		client, _ := c.Balance(pickFirst, addresses(c.Fleet()...), func(o *Options) { o.Authority = "set.test" })
		c.Authority("set", client)
		c.Authority("of a call", client, grpc.CallAuthority("call.test"))
		c.Authority("of a call, not in the certificate", client, grpc.CallAuthority("call.example"))
	}},
	{Name: "what Build gets", Sizes: []int{1}, Run: func(c *C) {
		var dials atomic.Int64
		for _, disable := range []bool{false, true} {
			r := c.Source("own")
			r.Addresses(addresses(c.Fleet()...)...)
			creds := c.clientCreds()
			r.Built = func(o resolver.BuildOptions) {
				c.Note("credentials %v, bundle %v, dialer %v", o.DialCreds.Info().SecurityProtocol, o.CredsBundle != nil, o.Dialer != nil)
			}
			client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, Creds: creds, DisableServiceConfig: disable, Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				dials.Add(1)
				c.Named("dialer").Note("%q", address)
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}})
			c.Unary("call", c.ctx, client)
		}
		c.Note("%d dials", dials.Load())
	}},
	{Name: "a dialer", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		for _, target := range []string{s[0].Addr, "passthrough:///any name", "any", "dns:///" + s[0].Addr, "own:///svc"} {
			r := c.Source("own")
			r.Addresses(resolver.Address{Addr: "some address"})
			client, err := c.TryDial(target, Options{Resolvers: []resolver.Builder{r}, Authority: "svc.test", Dialer: c.dialTo(s[0])})
			c.Err("dial", err)
			if err == nil {
				c.Unary("call", c.ctx, client)
			}
		}
		client := c.Dial("passthrough:///any", Options{Backoff: never, Authority: "svc.test", Dialer: func(context.Context, string) (net.Conn, error) { return nil, errIll }})
		c.Unary("the dialer fails", c.ctx, client)
	}},
	{Name: "what dialers get", Sizes: []int{1}, Plain: true, Fleets: []kind{near}, Run: func(c *C) {
		addresses := []string{"127.0.0.1:1", "name", "unix:/run/s", "unix:rel", "unix:///run/s", "unix-abstract:name", "inproc:name", "shm:/run/s", "tcp:127.0.0.1:1", "ws://host/path", "quic:host:1", "grpc:name", "\x00name", "@name", "/run/s"}
		get := func(target string, o Options) {
			o.Backoff, o.ServiceConfig, o.Dialer = never, pickFirst, func(_ context.Context, address string) (net.Conn, error) {
				c.Named(target).Note("%q", address)
				return nil, errIll
			}
			client, err := c.TryDial(target, o)
			c.Err(target, err)
			if err == nil {
				c.Unary("call", c.ctx, client)
			}
		}
		for _, a := range addresses {
			r := c.Source("own")
			r.Addresses(resolver.Address{Addr: a})
			get("own:///"+a, Options{Resolvers: []resolver.Builder{r}})
			get("passthrough:///"+a, Options{})
		}
		r, all := c.Source("own"), resolver.Endpoint{}
		for _, a := range addresses {
			all.Addresses = append(all.Addresses, resolver.Address{Addr: a})
		}
		r.Set(resolver.State{Endpoints: []resolver.Endpoint{all}})
		get("own:///all of an endpoint", Options{Resolvers: []resolver.Builder{r}})
	}},
	{Name: "a dialer closes its connections", Run: func(c *C) {
		var mu sync.Mutex
		var conns []net.Conn
		client, _ := c.Balance(roundRobin, addresses(c.Fleet(func(s *Server) { s.Offers = true })...), func(o *Options) {
			o.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				if err == nil {
					mu.Lock()
					conns = append(conns, conn)
					mu.Unlock()
				}
				return conn, err
			}
		})
		c.Settle(client, c.Size)
		var streams []grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]
		for range c.Size {
			st, err := pb.NewTestServiceClient(client).FullDuplexCall(c.ctx)
			c.Err("stream", err)
			c.Err("send", st.Send(&pb.StreamingOutputCallRequest{}))
			_, err = st.Recv() // without an answer it would be tried again on the next connection
			c.Err("answer", err)
			streams = append(streams, st)
		}
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		for _, st := range streams {
			_, err := st.Recv()
			c.Code("end", err)
		}
	}},
}

// dialTo returns a dialer that dials s whatever the address, and notes that.
func (c *C) dialTo(s *Server) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		c.Named("dialer").Note("%q", address)
		return new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
	}
}

// Shown notes the values of "show" in the metadata that the server sees.
func (c *C) Shown(label string, ctx context.Context, client grpc.ClientConnInterface, opts ...grpc.CallOption) {
	var header metadata.MD
	_, err := pb.NewTestServiceClient(client).EmptyCall(ctx, &pb.Empty{}, append(opts, grpc.Header(&header))...)
	c.Note("%s: %s, server sees %q, authority %q", label, describe(err), header["seen"], header["authority"])
}

// An overrider is a resolver that knows the authority.
type overrider struct{ *Source }

// OverrideAuthority implements [resolver.AuthorityOverrider].
func (overrider) OverrideAuthority(t resolver.Target) string { return t.Endpoint() + "-over.test" }

// attributed shows the attributes of the address in a handshake.
type attributed struct {
	credentials.TransportCredentials
	show func(*attributes.Attributes)
}

func (a attributed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	a.show(credentials.ClientHandshakeInfoFromContext(ctx).Attributes)
	return a.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (a attributed) Clone() credentials.TransportCredentials {
	return attributed{a.TransportCredentials.Clone(), a.show}
}
