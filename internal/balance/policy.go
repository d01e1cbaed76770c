package balance

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
)

// In a service config, a wrapper replaces the policy. The wrapper's config has the policy's name and
// config, and the parts of the service config that apply to calls. Each policy has a wrapper with a
// separate name, so that grpc-go switches gracefully between them. Policies must be registered
// while a program starts. Which policies it will use is not known by then. So there is a fixed
// number of wrappers, and each is given to the first policy that needs one.

const wrappers = 16

func init() {
	for i := range wrappers {
		balancer.Register(wrapper(i))
	}
}

type wrapper int

// Name implements [balancer.Builder].
func (w wrapper) Name() string { return fmt.Sprint(wrapperPrefix, int(w)) }

const wrapperPrefix = "nearcall_wrapper_"

var given = struct {
	sync.Mutex
	to map[string]wrapper // by the policy's name
}{to: make(map[string]wrapper)}

// wrapperOf returns the wrapper of a policy. If there are more policies than wrappers, some share
// one, and grpc-go does not switch gracefully between these.
func wrapperOf(policy string) wrapper {
	given.Lock()
	defer given.Unlock()
	w, ok := given.to[policy]
	if !ok {
		w = wrapper(len(given.to) % wrappers)
		given.to[policy] = w
	}
	return w
}

// wrapperConfig is the JSON of a wrapper's config.
type wrapperConfig struct {
	Policy  string          `json:"policy"`
	Config  json.RawMessage `json:"config,omitempty"`
	Service string          `json:"service"` // see serviceOf
}

// rewrite returns a service config, in JSON, whose policy is a wrapper. If the service config is not
// valid it returns it unchanged, and grpc-go reports the error.
func rewrite(text string) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(text), &all) != nil {
		return text
	}
	_, invalid := call.ParseServiceConfig(serviceOf(text), math.MaxInt) // then grpc-go reports the error
	own := wrapperConfig{Policy: pickfirst.Name, Service: serviceOf(text)}
	var list json.RawMessage
	retries := false
	rest := make(map[string]json.RawMessage, len(all)+1)
	for k, v := range all { // encoding/json, and so grpc-go, ignores the case of keys
		switch strings.ToLower(k) {
		case "loadbalancingconfig":
			list = v
		case "loadbalancingpolicy":
			var name string
			if json.Unmarshal(v, &name) != nil {
				return text
			}
			if balancer.Get(name) != nil {
				own.Policy = name
			}
		case "methodconfig":
			rest[k], retries = v, true
		case "retrythrottling":
			if invalid != nil {
				rest[k] = v
			}
		default:
			rest[k] = v
		}
	}
	if len(list) > 0 && string(list) != "null" {
		if own.Policy, own.Config = firstKnown(list); own.Policy == "" {
			return text
		}
	}
	if _, err := parsePolicy(own.Policy, own.Config); err != nil {
		return text
	}
	if invalid == nil && retries { // xDS, whose whole calls grpc-go retries, has no methodConfig here
		rest["retryThrottling"] = json.RawMessage(noRetries)
	}
	rest["loadBalancingConfig"], _ = json.Marshal([]map[string]any{{wrapperOf(own.Policy).Name(): own}})
	rewritten, _ := json.Marshal(rest) // no error: the values were parsed above
	return string(rewritten)
}

// isRewritten reports whether text comes from rewrite. It is false if text has an error for grpc-go
// to report.
func isRewritten(text string) bool {
	var config struct {
		LoadBalancingConfig json.RawMessage `json:"loadBalancingConfig"`
	}
	if json.Unmarshal([]byte(text), &config) != nil {
		return true
	}
	name, _ := firstKnown(config.LoadBalancingConfig)
	return strings.HasPrefix(name, wrapperPrefix)
}

// noRetries is a retryThrottling that stops grpc-go's retries by a retryPolicy: there is never a whole token.
// It must not retry the calls that it makes for the channel, which retries them itself. The
// policies stay, because GetMethodConfig returns them.
const noRetries = `{"maxTokens": 0.001, "tokenRatio": 0.001}`

// firstKnown returns the first policy of a loadBalancingConfig that is registered, and its config.
func firstKnown(list json.RawMessage) (name string, config json.RawMessage) {
	var entries []map[string]json.RawMessage
	if json.Unmarshal(list, &entries) != nil {
		return "", nil
	}
	for _, entry := range entries {
		if len(entry) != 1 {
			return "", nil
		}
		for name, config := range entry {
			if balancer.Get(name) != nil {
				return name, config
			}
		}
	}
	return "", nil
}

func parsePolicy(name string, config json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	parser, ok := balancer.Get(name).(balancer.ConfigParser)
	if !ok || len(config) == 0 && name == pickfirst.Name {
		return nil, nil
	}
	return parser.ParseConfig(config)
}

// serviceOf returns the parts of a service config that apply to calls.
func serviceOf(text string) string {
	all := make(map[string]json.RawMessage)
	_ = json.Unmarshal([]byte(text), &all) // if it fails, grpc-go refuses the config
	for k := range all {
		if !strings.EqualFold(k, "methodConfig") && !strings.EqualFold(k, "retryThrottling") {
			delete(all, k)
		}
	}
	service, _ := json.Marshal(all)
	return string(service)
}

// policyConfig is a wrapper's config.
type policyConfig struct {
	serviceconfig.LoadBalancingConfig
	name    string
	config  serviceconfig.LoadBalancingConfig
	service string
}

// ParseConfig implements [balancer.ConfigParser].
func (wrapper) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	var c wrapperConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if balancer.Get(c.Policy) == nil {
		return nil, fmt.Errorf("there is no policy %q", c.Policy)
	}
	config, err := parsePolicy(c.Policy, c.Config)
	return &policyConfig{name: c.Policy, config: config, service: c.Service}, err
}

// Build implements [balancer.Builder]. A policy finds its channel through the credentials in
// the options of the *grpc.ClientConn.
func (wrapper) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	h, ok := o.DialCreds.(*handshaker)
	if !ok {
		panic("nearcall: a service config names a wrapper of nearcall's: name the policy instead")
	}
	p := &policy{ClientConn: cc, channel: h.channel, opts: o}
	p.opts.DialCreds, p.opts.Dialer = h.TransportCredentials, h.channel.userDial()
	h.channel.watchIdleness()
	return p
}

// A policy is a balancer that wraps another one, and the wrapped one's ClientConn. It embeds
// grpc-go's, as grpc-go demands of interceptors.
type policy struct {
	balancer.ClientConn
	channel *Channel
	opts    balancer.BuildOptions
	name    string
	child   *child // nil before the first update
	applied *applied
}

// A child is the balancer that a policy wraps.
type child struct {
	balancer.Balancer // nil while it is built
}

// UpdateClientConnState implements [balancer.Balancer].
func (p *policy) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*policyConfig)
	if !ok {
		return fmt.Errorf("nearcall: a policy's config has type %T", s.BalancerConfig)
	}
	if p.child != nil && p.name != config.name { // there are more policies than wrappers
		p.child.Close()
		p.child = nil
	}
	if p.child == nil {
		p.name, p.child = config.name, new(child)
		p.child.Balancer = balancer.Get(config.name).Build(p, p.opts)
	}
	p.apply(config.service, s.ResolverState)
	s.BalancerConfig = config.config
	return p.child.UpdateClientConnState(s)
}

// apply makes a service config apply to the channel's calls, as it does to grpc-go's.
func (p *policy) apply(service string, s resolver.State) {
	last := p.channel.applied.Load()
	a := &applied{selector: selectorOf(s)}
	a.service, _ = call.ConfigOf(p.channel.cfg.Options, service) // grpc-go has parsed it
	p.applied = a
	p.channel.applied.Store(a)
	last.retire()
}

// ResolverError implements [balancer.Balancer].
func (p *policy) ResolverError(err error) {
	if p.child != nil {
		p.child.ResolverError(err)
	}
}

// ExitIdle implements [balancer.Balancer].
func (p *policy) ExitIdle() {
	if p.child != nil {
		p.child.ExitIdle()
	}
}

// UpdateSubConnState implements [balancer.Balancer]. It is not called, because NewSubConn sets
// listeners.
func (*policy) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// Close implements [balancer.Balancer].
func (p *policy) Close() {
	if p.child != nil {
		p.child.Close()
	}
	if p.channel.applied.CompareAndSwap(p.applied, nil) { // otherwise another policy has replaced this one
		p.applied.retire()
	}
	p.channel.replaced()
	if p.channel.conn.GetState() == connectivity.Shutdown {
		p.channel.end()
	}
}

// UpdateState implements [balancer.ClientConn].
func (p *policy) UpdateState(s balancer.State) {
	s.Picker = p.channel.newPicker(s.Picker)
	p.ClientConn.UpdateState(s)
	p.channel.replaced()
}

// NewSubConn implements [balancer.ClientConn].
func (p *policy) NewSubConn(addrs []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sc := &subConn{channel: p.channel}
	//lint:ignore SA1019 grpclb sets it
	if b := o.CredsBundle; b != nil {
		//lint:ignore SA1019 grpclb sets it
		o.CredsBundle = bundle{b, p.channel}
	}
	if o.StateListener == nil {
		child := p.child
		//lint:ignore SA1019 policies may still rely on it
		o.StateListener = func(s balancer.SubConnState) { child.UpdateSubConnState(sc, s) }
	}
	listener := o.StateListener
	o.StateListener = func(s balancer.SubConnState) {
		sc.ready.Store(s.ConnectivityState == connectivity.Ready)
		listener(s)
	}
	//lint:ignore SA1019 policies may still pass several addresses
	inner, err := p.ClientConn.NewSubConn(sc.marked(addrs), o)
	if err != nil {
		return nil, err
	}
	sc.SubConn = inner
	return sc, nil
}

// RemoveSubConn implements [balancer.ClientConn].
func (p *policy) RemoveSubConn(sc balancer.SubConn) { sc.Shutdown() }

// UpdateAddresses implements [balancer.ClientConn].
func (p *policy) UpdateAddresses(sc balancer.SubConn, addrs []resolver.Address) {
	//lint:ignore SA1019 policies may still call it
	sc.UpdateAddresses(addrs)
}

// A subConn is a SubConn of grpc-go with the session of its connection.
type subConn struct {
	balancer.SubConn
	channel *Channel
	current atomic.Pointer[current]
	ready   atomic.Bool   // as the policy has heard last
	begun   atomic.Bool   // there was a session
	giver   atomic.Uint64 // the number of a picker, usually the last one, that has given sc to a call to an ordinary server
}

// current is the session, and the metadata that its address adds to calls.
type current struct {
	link.Session
	pinned    bool        // see pinned.go
	authority string      // replaces that of the target; "" for none
	metadata  metadata.MD // may be nil
}

// A mark is an attribute of an address. It leads from the address to its SubConn when grpc-go
// connects.
type mark struct {
	sc         *subConn
	serverName string       // the address's
	metadata   *metadata.MD // sent with each call; may be nil
}

type markKey struct{}

// markOf returns the mark of the address to which the connection of ctx is made.
func markOf(ctx context.Context) (m mark, ok bool) {
	m, ok = credentials.ClientHandshakeInfoFromContext(ctx).Attributes.Value(markKey{}).(mark)
	return m, ok
}

// marked returns addresses that lead to sc.
func (sc *subConn) marked(addrs []resolver.Address) []resolver.Address {
	marked := make([]resolver.Address, len(addrs))
	for i, a := range addrs {
		//lint:ignore SA1019 grpc-go still sends it
		md, _ := a.Metadata.(*metadata.MD)
		a.Attributes = a.Attributes.WithValue(markKey{}, mark{sc, a.ServerName, md})
		marked[i] = a
	}
	return marked
}

// UpdateAddresses implements [balancer.SubConn].
func (sc *subConn) UpdateAddresses(addrs []resolver.Address) {
	//lint:ignore SA1019 policies may still call it
	sc.SubConn.UpdateAddresses(sc.marked(addrs))
}

// begin makes c the session of sc. It returns a function for the end of the connection.
func (sc *subConn) begin(c *current) (end func()) {
	if sc.begun.Swap(true) {
		counters.Reconnections.Add(1)
	}
	sc.current.Store(c)
	return sync.OnceFunc(func() {
		sc.current.CompareAndSwap(c, nil)
		sc.channel.leave(c.Session)
	})
}

// session returns the session of sc, or nil if it takes no calls. A pinned session does not notice
// when its connection takes none.
func (sc *subConn) session() *current {
	c := sc.current.Load()
	if c == nil || link.IsClosed(c.Done()) || c.pinned && !sc.ready.Load() {
		return nil
	}
	return c
}

// A picker wraps a policy's picker, for grpc-go and for the channel.
type picker struct {
	balancer.Picker
	channel *Channel
	number  uint64
}

func (c *Channel) newPicker(p balancer.Picker) *picker {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pickers++
	return &picker{p, c, c.pickers}
}

// pick picks a session.
func (p *picker) pick(info balancer.PickInfo) (call.Pick, error) {
	r, err := p.Picker.Pick(info)
	if err != nil {
		return call.Pick{}, err
	}
	if sc, ok := r.SubConn.(*subConn); ok {
		if c := sc.session(); c != nil {
			if c.pinned && sc.giver.Load() != p.number {
				sc.giver.Store(p.number)
			}
			if c.metadata != nil {
				r.Metadata = metadata.Join(c.metadata, r.Metadata)
			}
			return call.Pick{Session: c.Session, Authority: c.authority, Done: r.Done, Metadata: r.Metadata}, nil
		}
	}
	if r.Done != nil {
		r.Done(balancer.DoneInfo{}) // as grpc-go does for a SubConn that is not ready
	}
	return call.Pick{}, balancer.ErrNoSubConnAvailable
}

// Pick implements [balancer.Picker] for the calls that grpc-go makes: up to the pick for a call of the
// channel, on the SubConn that was picked for such a call, or as a whole.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	switch own := info.Ctx.Value(ownKey{}).(type) {
	case *pin:
		return own.result(p)
	case *capture:
		if own.configOnly {
			return balancer.PickResult{}, errCaptured
		}
		pick, err := p.pick(info)
		_, dropped := status.FromError(err)
		switch {
		case err == nil:
			pick.Waited = p.number > own.pickers
			own.pick, err = pick, errCaptured
			p.channel.use(p, own.generation)
		case dropped:
			own.dropped = true
		case err != balancer.ErrNoSubConnAvailable && !own.waitForReady:
			err = status.Error(codes.Unavailable, err.Error()) // the same status as from grpc-go, but grpc-go does not retry it
		}
		return balancer.PickResult{}, err
	}
	r, err := p.Picker.Pick(info)
	if sc, ok := r.SubConn.(*subConn); ok {
		r.SubConn = sc.SubConn
	}
	return r, err
}
