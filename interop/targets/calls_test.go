package targets

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
)

const (
	pickFirst  = `{"loadBalancingConfig":[{"pick_first":{}}]}`
	roundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`
)

// policy returns a service config with a policy.
func policy(name, config string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{%q:%s}]}`, name, config)
}

// Dial returns a client, which is closed at the end of the case.
func (c *C) Dial(target string, o Options) Client {
	client, err := c.TryDial(target, o)
	if err != nil {
		panic(fmt.Sprintf("cannot dial %q: %v", target, err))
	}
	return client
}

// TryDial is Dial for targets and options that are refused.
func (c *C) TryDial(target string, o Options) (Client, error) {
	if o.Creds == nil {
		o.Creds = c.clientCreds()
	}
	client, err := c.dialer.dial(target, o)
	if err == nil {
		c.Cleanup(func() { client.Close() })
	}
	return client, err
}

// Balance returns a client of the servers with these addresses, and their resolver.
func (c *C) Balance(config string, addresses []resolver.Address, edit ...func(*Options)) (Client, *Source) {
	if len(addresses) > 1 && (config == "" || strings.Contains(config, "pick_first")) {
		c.Lasting(0) // pick_first tries the next address after 250 ms
	}
	r := c.Source("own")
	r.Set(resolver.State{Addresses: addresses})
	o := Options{Resolvers: []resolver.Builder{r}, ServiceConfig: config}
	for _, f := range edit {
		f(&o)
	}
	return c.Dial("own:///svc", o), r
}

// unary makes a unary call and returns the name of the server.
func unary(ctx context.Context, client grpc.ClientConnInterface, opts ...grpc.CallOption) (string, error) {
	m, err := pb.NewTestServiceClient(client).UnaryCall(ctx, &pb.SimpleRequest{}, opts...)
	return m.GetServerId(), err
}

// with returns the case's context with metadata.
func (c *C) with(pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(c.ctx, pairs...)
}

// Unary notes who served a call, or its error.
func (c *C) Unary(label string, ctx context.Context, client grpc.ClientConnInterface, opts ...grpc.CallOption) {
	id, err := unary(ctx, client, opts...)
	if err != nil {
		c.Err(label, err)
		return
	}
	c.Note("%s: served by %s", label, id)
}

// Spread notes how many of n calls each server has served.
func (c *C) Spread(label string, client grpc.ClientConnInterface, n int) {
	c.Note("%s: %s", label, spread(c.ctx, client, n))
}

func spread(ctx context.Context, client grpc.ClientConnInterface, n int, opts ...grpc.CallOption) string {
	got := map[string]int{}
	for range n {
		id, err := unary(ctx, client, opts...)
		if err != nil {
			id = describe(err)
		}
		got[id]++
	}
	return counts(got)
}

func counts(got map[string]int) string {
	var all []string
	for id, n := range got {
		all = append(all, fmt.Sprintf("%s:%d", id, n))
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

// Settle makes calls until as many servers have answered in one round as there should be.
func (c *C) Settle(client grpc.ClientConnInterface, servers int) {
	c.Until(fmt.Sprintf("%d servers serve calls", servers), func() bool { return reached(c.ctx, client, 3*servers) == servers })
}

// reached returns how many servers have answered n calls, or -1 if one failed.
func reached(ctx context.Context, client grpc.ClientConnInterface, n int) int {
	got := map[string]bool{}
	for range n {
		id, err := unary(ctx, client)
		if err != nil {
			return -1
		}
		got[id] = true
	}
	return len(got)
}

// Stream opens a stream and notes who serves it.
func (c *C) Stream(label string, ctx context.Context, client grpc.ClientConnInterface) grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse] {
	s, err := pb.NewTestServiceClient(client).FullDuplexCall(ctx)
	if err != nil {
		c.Err(label, err)
		return nil
	}
	c.Ping(label, s)
	return s
}

// Ping sends a message on a stream and notes the answer.
func (c *C) Ping(label string, s grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) {
	err := s.Send(&pb.StreamingOutputCallRequest{})
	m, end := s.Recv()
	if end != nil {
		if err == io.EOF { // the stream had ended before Send, not after it
			err = nil
		}
		c.Note("%s: send %s, end %s", label, describe(err), describe(end))
		return
	}
	c.Note("%s: %s, served by %s", label, describe(err), m.GetPayload().GetBody())
}

// Finish ends a stream and notes how it ended.
func (c *C) Finish(label string, s grpc.BidiStreamingClient[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) {
	_ = s.CloseSend()
	_, err := s.Recv()
	c.Note("%s: %s, trailer %v", label, describe(err), trailerOf(s.Trailer()))
}

// Authority notes the :authority that the server sees.
func (c *C) Authority(label string, client grpc.ClientConnInterface, opts ...grpc.CallOption) {
	var header metadata.MD
	_, err := pb.NewTestServiceClient(client).EmptyCall(c.ctx, &pb.Empty{}, append(opts, grpc.Header(&header))...)
	if err != nil {
		c.Err(label, err)
		return
	}
	c.Note("%s: %q", label, header["authority"])
}

// Await waits until the client has the state.
func (c *C) Await(client Client, want connectivity.State) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	for s := client.GetState(); s != want; s = client.GetState() {
		if !client.WaitForStateChange(ctx, s) {
			c.Note("IT DID NOT HAPPEN: the state %v; it is %v", want, s)
			return
		}
	}
	c.Note("state %v", want)
}

// Load is a number of goroutines that make calls until Stop.
type Load struct {
	c     *C
	stop  atomic.Bool
	wg    sync.WaitGroup
	made  atomic.Int64
	mu    sync.Mutex
	ended map[string]int // how calls ended that failed
}

// Load makes unary calls.
func (c *C) Load(callers int, client grpc.ClientConnInterface, opts ...grpc.CallOption) *Load {
	return c.load(callers, func() error { return lastly(unary(c.ctx, client, opts...)) })
}

// load makes calls, each with call.
func (c *C) load(callers int, call func() error) *Load {
	l := &Load{c: c, ended: map[string]int{}}
	for range callers {
		l.wg.Go(func() {
			for !l.stop.Load() && c.ctx.Err() == nil {
				if err := call(); err != nil {
					l.mu.Lock()
					l.ended[describe(err)]++
					l.mu.Unlock()
				}
				l.made.Add(1)
			}
		})
	}
	c.Cleanup(func() {
		l.stop.Store(true)
		l.wg.Wait()
	})
	return l
}

// More waits for n more calls.
func (l *Load) More(n int64) {
	want := l.made.Load() + n
	l.c.Until("more calls end", func() bool { return l.made.Load() >= want })
}

// Stop notes how calls have failed.
func (l *Load) Stop(label string) {
	l.stop.Store(true)
	l.wg.Wait()
	l.c.Note("%s: failed calls: [%s]", label, counts(l.ended))
}
