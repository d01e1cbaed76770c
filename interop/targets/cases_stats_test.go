package targets

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"
)

func TestStats(t *testing.T) { run(t, statsCases) }

var statsCases = []Case{
	{Name: "name resolution", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h := c.Watch("stats")
		h.fast = true
		r := c.Source("own")
		client := c.Dial("own:///svc", Options{Resolvers: []resolver.Builder{r}, Stats: []stats.Handler{h}})
		result := make(chan error, 1)
		go func() { result <- lastly(unary(c.ctx, client)) }()
		c.Until("the resolver is built", func() bool { return r.ClientConn() != nil })
		c.Pause(c.Lasting(5 * time.Millisecond))
		r.Addresses(addresses(s...)...)
		c.Err("first call", <-result)
		c.Unary("next call", c.ctx, client)
		h.finish(client, 2)
	}},
	{Name: "no delay of name resolution", Sizes: []int{1}, Run: func(c *C) {
		h := c.Watch("stats")
		client, _ := c.Balance(pickFirst, addresses(c.Fleet()...), func(o *Options) { o.Stats = []stats.Handler{h} })
		client.Connect()
		c.Await(client, connectivity.Ready)
		c.Unary("first call", c.ctx, client)
		c.Unary("next call", c.ctx, client)
		h.finish(client, 2)
	}},
	{Name: "a pick that waits", Sizes: []int{1}, Run: func(c *C) {
		s := c.Fleet()
		h := c.Watch("stats")
		s[0].Hold()
		client, _ := c.Balance(pickFirst, addresses(s...), func(o *Options) { o.Stats = []stats.Handler{h} })
		c.Unary("deadline", c.Timeout(20*time.Millisecond), client)
		result := make(chan error, 1)
		go func() { result <- lastly(unary(c.ctx, client, grpc.WaitForReady(true))) }()
		c.Until("the call has begun", func() bool { return c.noted("stats call 2", "begin") == 1 })
		c.Pause(c.Lasting(5 * time.Millisecond))
		s[0].Resume()
		c.Err("wait", <-result)
		c.Unary("no wait", c.ctx, client)
		h.finish(client, 3)
	}},
	{Name: "a picker that fails", Sizes: []int{1}, Run: func(c *C) {
		h := c.Watch("stats")
		client, _ := c.Balance(asking, addresses(c.Fleet()...), func(o *Options) { o.Stats = []stats.Handler{h} })
		client.Connect()
		c.Await(client, connectivity.Ready)
		c.Unary("call", c.ctx, client)
		ctx := context.WithValue(c.ctx, pickKey{}, pickFunc(func(balancer.PickInfo, balancer.SubConn) (balancer.PickResult, error) {
			return balancer.PickResult{}, errIll
		}))
		c.Unary("error", ctx, client)
		_, err := pb.NewTestServiceClient(client).FullDuplexCall(ctx)
		c.Err("stream", err)
		h.finish(client, 3)
	}},
	{Name: "attempts", Sizes: []int{1}, Run: func(c *C) {
		h := c.Watch("stats")
		client, _ := c.Balance(`{`+retries+`}`, addresses(c.Fleet()...), func(o *Options) { o.Stats = []stats.Handler{h} })
		client.Connect()
		c.Await(client, connectivity.Ready)
		c.Unary("retried", c.with("fail-first", "1"), client)
		c.Unary("fails", c.with("fail", fmt.Sprint(int(codes.Internal))), client)
		h.finish(client, 3)
	}},
	{Name: "no server", Sizes: []int{1}, Run: func(c *C) {
		h := c.Watch("stats")
		h.fast = true
		client, _ := c.Balance(pickFirst, []resolver.Address{c.refused("dead")}, func(o *Options) { o.Backoff, o.Stats = never, []stats.Handler{h} })
		c.Unary("fail fast", c.ctx, client)
		c.Unary("wait", c.Timeout(20*time.Millisecond), client, grpc.WaitForReady(true))
		h.finish(client, 2)
	}},
	{Name: "connections", Run: func(c *C) {
		s := c.Fleet()
		h := c.Watch("stats")
		h.quiet = true
		client, r := c.Balance(roundRobin, append(addresses(s...), c.refused("dead")), func(o *Options) { o.Backoff, o.Stats = never, []stats.Handler{h} })
		c.Settle(client, c.Size)
		s[0].Down()
		c.Until("a connection ends", func() bool { return c.noted("connection "+s[0].Name, "end") == 1 })
		c.Until("attempts fail", func() bool { return r.asked.Load() >= 3 })
		s[0].Start()
		// grpc-go asks the resolver before the backoff begins.
		c.Until("all servers serve calls again", func() bool {
			client.ResetConnectBackoff()
			return reached(c.ctx, client, 3*c.Size) == c.Size
		})
		client.Close()
		for _, s := range s {
			c.Until("all connections end", func() bool { return c.noted("connection "+s.Name, "begin") == c.noted("connection "+s.Name, "end") })
		}
	}},
	{Name: "several handlers", Sizes: []int{1}, Plain: true, Run: func(c *C) {
		one, two := c.Watch("first"), c.Watch("second")
		client, _ := c.Balance(pickFirst, addresses(c.Fleet()...), func(o *Options) { o.Stats = []stats.Handler{one, two} })
		client.Connect()
		c.Await(client, connectivity.Ready)
		c.Unary("call", c.ctx, client)
		one.finish(client, 1)
		two.finish(client, 1)
	}},
}

// A watch is a stats handler that notes what it sees.
type watch struct {
	c     *C
	actor string
	quiet bool // it notes connections only
	fast  bool // it does not note whether picks wait, which depends on timing
	calls atomic.Int64
	ended atomic.Int64
	conns atomic.Int64 // that are open
}

type (
	callKey struct{ *watch }
	connKey struct{ *watch }
)

// Watch returns a stats handler whose notes are in actors that begin with a name.
func (c *C) Watch(actor string) *watch { return &watch{c: c, actor: actor} }

// finish waits until as many calls have ended, closes the client, and waits until its connections have ended.
func (w *watch) finish(client Client, n int64) {
	w.c.Until("the calls' events have come", func() bool { return w.ended.Load() == n })
	client.Close()
	w.c.Until("the connections end", func() bool { return w.conns.Load() == 0 })
}

func (w *watch) TagRPC(ctx context.Context, i *stats.RPCTagInfo) context.Context {
	if w.quiet {
		return ctx
	}
	n := w.calls.Add(1) // each attempt is tagged
	a := w.c.Named(fmt.Sprint(w.actor, " call ", n))
	a.Note("tag %s, fail fast %v, delayed by name resolution %v", i.FullMethodName, i.FailFast, i.NameResolutionDelay)
	return context.WithValue(ctx, callKey{w}, n)
}

func (w *watch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	n, ok := ctx.Value(callKey{w}).(int64)
	if !ok {
		return
	}
	a := w.c.Named(fmt.Sprint(w.actor, " call ", n))
	switch s := s.(type) {
	case *stats.Begin:
		a.Note("begin, client %v, fail fast %v, client stream %v, server stream %v, transparent retry %v", s.Client, s.FailFast, s.IsClientStream, s.IsServerStream, s.IsTransparentRetryAttempt)
	case *stats.DelayedPickComplete:
		if !w.fast {
			a.Note("delayed pick complete")
		}
	case *stats.OutHeader:
		a.Note("out header %s, client %v, compression %q", s.FullMethod, s.Client, s.Compression)
	case *stats.InHeader, *stats.InTrailer: // they come from the goroutine that reads
		w.c.Named(fmt.Sprint(w.actor, " call ", n, " received")).Note("%T, client %v", s, s.IsClient())
	case *stats.End:
		a.Note("end, client %v: %s", s.Client, describe(s.Error))
		w.ended.Add(1)
	default:
		a.Note("%T", s)
	}
}

func (w *watch) TagConn(ctx context.Context, i *stats.ConnTagInfo) context.Context {
	a := w.c.Named(w.c.Text("connection " + i.RemoteAddr.String()))
	a.Note("tag, network %s, local address %v", i.RemoteAddr.Network(), i.LocalAddr != nil)
	return context.WithValue(ctx, connKey{w}, a)
}

func (w *watch) HandleConn(ctx context.Context, s stats.ConnStats) {
	a, ok := ctx.Value(connKey{w}).(*Actor)
	if !ok {
		w.c.Note("an event of a connection that was not tagged")
		return
	}
	switch s := s.(type) {
	case *stats.ConnBegin:
		a.Note("begin, client %v", s.Client)
		w.conns.Add(1)
	case *stats.ConnEnd:
		a.Note("end, client %v", s.Client)
		w.conns.Add(-1)
	}
}
