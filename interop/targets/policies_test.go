package targets

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

func init() {
	balancer.Register(base.NewBalancerBuilder("asking", askingBuilder{}, base.Config{HealthCheck: true}))
	balancer.Register(recordingBuilder{})
	balancer.Register(heldBuilder{})
}

const asking = `{"loadBalancingConfig":[{"asking":{}}]}`

// pickKey is the key of a call's picker in its context. Its value is a pickFunc.
type pickKey struct{}

// A pickFunc picks for one call. first is a SubConn that is READY.
type pickFunc func(info balancer.PickInfo, first balancer.SubConn) (balancer.PickResult, error)

// askingBuilder makes pickers that ask the context of the call.
type askingBuilder struct{}

func (askingBuilder) Build(info base.PickerBuildInfo) balancer.Picker {
	var ready []balancer.SubConn
	for sc := range info.ReadySCs {
		ready = append(ready, sc)
	}
	if len(ready) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	slices.SortFunc(ready, func(a, b balancer.SubConn) int {
		return cmp.Compare(info.ReadySCs[a].Address.Addr, info.ReadySCs[b].Address.Addr)
	})
	return askingPicker(ready)
}

type askingPicker []balancer.SubConn

func (p askingPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	if f, ok := info.Ctx.Value(pickKey{}).(pickFunc); ok {
		return f(info, p[0])
	}
	return balancer.PickResult{SubConn: p[0]}, nil
}

// policyActors are the actors of policies "recording" and the *Held of policies "held", by the id in their config.
var (
	policyActors sync.Map
	policyIDs    atomic.Int64
)

// Recording returns a service config of a policy that notes what passes between it and its child, whose config
// is child.
func (c *C) Recording(actor, child string) string {
	id := fmt.Sprint(policyIDs.Add(1))
	policyActors.Store(id, c.Named(actor))
	c.Cleanup(func() { policyActors.Delete(id) })
	return fmt.Sprintf(`{"loadBalancingConfig":[{"recording":{"id":%q,"child":[%s]}}]}`, id, child)
}

type recordingConfig struct {
	serviceconfig.LoadBalancingConfig `json:"-"`
	ID                                string                       `json:"id"`
	Child                             []map[string]json.RawMessage `json:"child"`

	builder balancer.Builder
	config  serviceconfig.LoadBalancingConfig
}

type recordingBuilder struct{}

func (recordingBuilder) Name() string { return "recording" }

func (recordingBuilder) ParseConfig(js json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c := &recordingConfig{}
	if err := json.Unmarshal(js, c); err != nil {
		return nil, err
	}
	for name, config := range c.Child[0] {
		if c.builder = balancer.Get(name); c.builder == nil {
			return nil, fmt.Errorf("there is no policy %q", name)
		}
		if p, ok := c.builder.(balancer.ConfigParser); ok {
			var err error
			if c.config, err = p.ParseConfig(config); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (recordingBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &recording{ClientConn: cc, opts: opts}
}

// recording is a policy, and the ClientConn of its child.
type recording struct {
	balancer.ClientConn
	opts  balancer.BuildOptions
	actor *Actor
	child balancer.Balancer
}

func (b *recording) UpdateClientConnState(s balancer.ClientConnState) error {
	c := s.BalancerConfig.(*recordingConfig)
	actor, ok := policyActors.Load(c.ID)
	if !ok {
		return balancer.ErrBadResolverState // the case has ended
	}
	if b.child == nil {
		b.actor = actor.(*Actor)
		b.actor.Note("build: target %q, authority %q, user agent %q, dialer %v, credentials %v", b.opts.Target.URL.String(), b.opts.Authority, b.opts.CustomUserAgent, b.opts.Dialer != nil, b.opts.DialCreds.Info().SecurityProtocol)
		b.child = c.builder.Build(b, b.opts)
	}
	s.BalancerConfig = c.config
	err := b.child.UpdateClientConnState(s)
	b.actor.Note("update: %s: %v", endpoints(s.ResolverState), err)
	return err
}

// endpoints describes the endpoints that a policy gets.
func endpoints(s resolver.State) string {
	var all []string
	for _, e := range s.Endpoints {
		var one []string
		for _, a := range e.Addresses {
			text := a.Addr
			if a.ServerName != "" {
				text += " as " + a.ServerName
			}
			one = append(one, text)
		}
		all = append(all, fmt.Sprintf("[%s]", strings.Join(one, " ")))
	}
	return fmt.Sprintf("%d addresses, endpoints %v", len(s.Addresses), all)
}

func (b *recording) ResolverError(err error) {
	if b.child != nil {
		b.actor.Note("resolver error: %v", err)
		b.child.ResolverError(err)
	}
}

func (b *recording) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

func (b *recording) ExitIdle() {
	if b.child != nil {
		b.actor.Note("exit idle")
		b.child.ExitIdle()
	}
}

func (b *recording) Close() {
	if b.child != nil {
		b.actor.Note("close")
		b.child.Close()
	}
}

// NewSubConn implements [balancer.ClientConn] for the child.
func (b *recording) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	actor := b.actor.c.Named(b.actor.c.Text("subconn " + addrs[0].Addr))
	actor.Note("new, %d addresses, health %v", len(addrs), opts.HealthCheckEnabled)
	listen := opts.StateListener
	opts.StateListener = func(s balancer.SubConnState) {
		actor.Note("%v %v", s.ConnectivityState, s.ConnectionError)
		listen(s)
	}
	//lint:ignore SA1019 deprecated for more than one address
	return b.ClientConn.NewSubConn(addrs, opts)
}

// UpdateState implements [balancer.ClientConn] for the child.
func (b *recording) UpdateState(s balancer.State) {
	b.actor.Note("state %v", s.ConnectivityState)
	b.ClientConn.UpdateState(s)
}

// ResolveNow implements [balancer.ClientConn] for the child.
func (b *recording) ResolveNow(o resolver.ResolveNowOptions) {
	b.actor.Note("resolve now")
	b.ClientConn.ResolveNow(o)
}

// A Held is a policy that leaves everything to the case.
type Held struct {
	*Actor
	cc    chan balancer.ClientConn // what each new balancer gets
	exits atomic.Int64             // calls of ExitIdle
}

// Held returns a policy and its service config.
func (c *C) Held() (*Held, string) {
	h := &Held{Actor: c.Named("policy"), cc: make(chan balancer.ClientConn, 16)}
	id := fmt.Sprint(policyIDs.Add(1))
	policyActors.Store(id, h)
	c.Cleanup(func() { policyActors.Delete(id) })
	return h, fmt.Sprintf(`{"loadBalancingConfig":[{"held":{"id":%q}}]}`, id)
}

// ClientConn waits for the next balancer.
func (h *Held) ClientConn() balancer.ClientConn {
	select {
	case cc := <-h.cc:
		return cc
	case <-h.c.ctx.Done():
		panic("the policy was not built")
	}
}

type heldConfig struct {
	serviceconfig.LoadBalancingConfig `json:"-"`
	ID                                string `json:"id"`
}

type heldBuilder struct{}

func (heldBuilder) Name() string { return "held" }

func (heldBuilder) ParseConfig(js json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c := &heldConfig{}
	return c, json.Unmarshal(js, c)
}

func (heldBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &held{cc: cc}
}

type held struct {
	cc balancer.ClientConn
	h  *Held
}

func (b *held) UpdateClientConnState(s balancer.ClientConnState) error {
	if b.h == nil {
		h, ok := policyActors.Load(s.BalancerConfig.(*heldConfig).ID)
		if !ok {
			return balancer.ErrBadResolverState
		}
		b.h = h.(*Held)
		b.h.cc <- b.cc
	}
	b.h.Note("update: %s", endpoints(s.ResolverState))
	if len(s.ResolverState.Endpoints) == 0 {
		return fmt.Errorf("the policy wants endpoints")
	}
	return nil
}

func (b *held) ResolverError(err error) {
	if b.h != nil {
		b.h.Note("resolver error: %v", err)
	}
}

func (b *held) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

func (b *held) ExitIdle() {
	if b.h != nil {
		b.h.exits.Add(1)
	}
}

func (b *held) Close() {
	if b.h != nil {
		b.h.Note("close")
	}
}

// A SubConn is one of a held policy, with its states.
type SubConn struct {
	balancer.SubConn
	c      *C
	actor  *Actor
	states chan balancer.SubConnState
}

// NewSubConn makes a SubConn. Its states are noted in an actor.
func (c *C) NewSubConn(cc balancer.ClientConn, name string, addresses []resolver.Address, opts balancer.NewSubConnOptions) (*SubConn, error) {
	s := &SubConn{c: c, actor: c.Named(name), states: make(chan balancer.SubConnState, 100)}
	opts.StateListener = func(state balancer.SubConnState) {
		s.actor.Note("%v %v", state.ConnectivityState, state.ConnectionError)
		s.states <- state
	}
	var err error
	//lint:ignore SA1019 deprecated for more than one address
	s.SubConn, err = cc.NewSubConn(addresses, opts)
	return s, err
}

// Await waits for a state.
func (s *SubConn) Await(want connectivity.State) {
	s.c.Until(fmt.Sprintf("the SubConn is %v", want), func() bool {
		for {
			select {
			case state := <-s.states:
				if state.ConnectivityState == want {
					return true
				}
			default:
				return false
			}
		}
	})
}

// A picker is a function.
type picker func(balancer.PickInfo) (balancer.PickResult, error)

func (p picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) { return p(info) }

// to is a picker that always picks s.
func to(s *SubConn) balancer.Picker {
	return picker(func(balancer.PickInfo) (balancer.PickResult, error) {
		return balancer.PickResult{SubConn: s.SubConn}, nil
	})
}
