package balance

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
)

// A policy is a balancer that wraps another one, and the wrapped one's ClientConn. It embeds
// grpc-go's, as grpc-go demands of interceptors. It implements [balancer.ClientConn] and [balancer.Balancer].
type policy struct {
	balancer.ClientConn
	grpcinside.Policy
	channel *Channel
	applied *applied
}

func (p *policy) UpdateClientConnState(s balancer.ClientConnState) error {
	if config, ok := s.BalancerConfig.(*grpcinside.PolicyConfig); ok {
		p.apply(config.Service, s.ResolverState)
	}
	return p.Policy.UpdateClientConnState(s)
}

// apply makes a service config apply to the channel's calls, as it does to grpc-go's.
func (p *policy) apply(service string, s resolver.State) {
	last := p.channel.applied.Load()
	a := new(applied)
	if chosen := grpcinside.SelectorOf(s); chosen != nil {
		a.selector = &selector{Selector: chosen}
	}
	a.service, _ = client.ConfigOf(p.channel.cfg.Options, service) // grpc-go has parsed it
	p.applied = a
	p.channel.applied.Store(a)
	last.retire()
}

func (p *policy) Close() {
	p.Policy.Close()
	if p.channel.applied.CompareAndSwap(p.applied, nil) { // otherwise another policy has replaced this one
		p.applied.retire()
	}
	p.channel.replaced()
	if p.channel.conn.GetState() == connectivity.Shutdown {
		p.channel.end()
	}
}

func (p *policy) UpdateState(s balancer.State) {
	s.Picker = p.channel.newPicker(s.Picker)
	p.ClientConn.UpdateState(s)
	p.channel.replaced()
}

func (p *policy) NewSubConn(addrs []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sc := &subConn{channel: p.channel}
	//lint:ignore SA1019 grpclb sets it
	if b := o.CredsBundle; b != nil {
		//lint:ignore SA1019 grpclb sets it
		o.CredsBundle = bundle{b, p.channel}
	}
	if o.StateListener == nil {
		child := p.Child
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

func (p *policy) RemoveSubConn(sc balancer.SubConn) { sc.Shutdown() }

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
	if !grpcinside.Marks.Found() {
		return mark{}, false
	}
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
func (p *picker) pick(info balancer.PickInfo) (client.Pick, error) {
	r, err := p.Picker.Pick(info)
	if err != nil {
		return client.Pick{}, err
	}
	if sc, ok := r.SubConn.(*subConn); ok {
		if c := sc.session(); c != nil {
			if c.pinned && sc.giver.Load() != p.number {
				sc.giver.Store(p.number)
			}
			if c.metadata != nil {
				r.Metadata = metadata.Join(c.metadata, r.Metadata)
			}
			return client.Pick{Session: c.Session, Authority: c.authority, Done: r.Done, Metadata: r.Metadata}, nil
		}
	}
	if r.Done != nil {
		r.Done(balancer.DoneInfo{}) // as grpc-go does for a SubConn that is not ready
	}
	return client.Pick{}, balancer.ErrNoSubConnAvailable
}

// Pick implements [balancer.Picker] for the calls that grpc-go makes: up to the pick for a call of the
// channel, on the SubConn that was picked for such a call, or as a whole.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	switch own := info.Ctx.Value(ownKey{}).(type) {
	case *pin:
		return own.result(p)
	case *capture:
		if own.configOnly || p.channel.isWhole.Load() {
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
