package targets

import (
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/resolver"
)

// A Source is a resolver and its builder. It notes what a client does with it.
type Source struct {
	*Actor
	Built func(resolver.BuildOptions) // called by Build; set before it is called

	scheme string
	builds atomic.Int64
	closes atomic.Int64
	asked  atomic.Int64

	mu    sync.Mutex
	cc    resolver.ClientConn
	state *resolver.State
	fail  error
}

// Source returns a resolver for targets with the scheme.
func (c *C) Source(scheme string) *Source { return &Source{Actor: c.Named("resolver"), scheme: scheme} }

// Scheme implements [resolver.Builder].
func (r *Source) Scheme() string { return r.scheme }

// Build implements [resolver.Builder]. The state that was set goes to the client before Build returns.
func (r *Source) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	r.Note("Build: URL %q, endpoint %q, authority %q, service config disabled %v", target.URL.String(), target.Endpoint(), opts.Authority, opts.DisableServiceConfig)
	r.builds.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Built != nil {
		r.Built(opts)
	}
	if r.fail != nil {
		return nil, r.fail
	}
	r.cc = cc
	if r.state != nil {
		r.updateLocked()
	}
	return r, nil
}

// ResolveNow implements [resolver.Resolver].
func (r *Source) ResolveNow(resolver.ResolveNowOptions) { r.asked.Add(1) }

// Close implements [resolver.Resolver].
func (r *Source) Close() {
	r.closes.Add(1)
	r.Note("Close")
}

// Fail makes Build return an error, or not.
func (r *Source) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// Set sets the state that Build reports first, and reports it if Build was called.
func (r *Source) Set(s resolver.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = &s
	if r.cc != nil {
		r.updateLocked()
	}
}

// Addresses sets a state of addresses alone.
func (r *Source) Addresses(a ...resolver.Address) { r.Set(resolver.State{Addresses: a}) }

// Config sets addresses and a service config.
func (r *Source) Config(json string, a ...resolver.Address) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = &resolver.State{Addresses: a, ServiceConfig: r.cc.ParseServiceConfig(json)}
	if err := r.state.ServiceConfig.Err; err != nil {
		r.Note("ParseServiceConfig: %v", err)
	}
	r.updateLocked()
}

// Report reports an error of the resolver.
func (r *Source) Report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cc.ReportError(err)
}

// ClientConn returns what Build was called with.
func (r *Source) ClientConn() resolver.ClientConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cc
}

// updateLocked reports the state.
func (r *Source) updateLocked() {
	if err := r.cc.UpdateState(*r.state); err != nil {
		r.Note("UpdateState of %d addresses: %v", len(r.state.Addresses)+len(r.state.Endpoints), err)
	}
}

// registered are the states of the scheme "fleet", which is registered with gRPC, by endpoint.
var registered sync.Map

func init() { resolver.Register(fleetBuilder{}) }

type fleetBuilder struct{}

func (fleetBuilder) Scheme() string { return "fleet" }

func (fleetBuilder) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	s, ok := registered.Load(target.Endpoint())
	if !ok {
		return nil, fmt.Errorf("there is no fleet %q", target.Endpoint())
	}
	_ = cc.UpdateState(s.(resolver.State))
	return fixed{}, nil
}

// fixed is a resolver whose state stays.
type fixed struct{}

func (fixed) ResolveNow(resolver.ResolveNowOptions) {}
func (fixed) Close()                                {}
