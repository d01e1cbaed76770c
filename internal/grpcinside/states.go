package grpcinside

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
)

// A Shown is a connection whose state connections of grpc-go can show.
type Shown struct {
	Target        string
	ServiceConfig string // JSON; "" for none
	MaxAttempts   int    // limit for its retry policies
	Conn          interface {
		Connect()
		ResetConnectBackoff()
		Observe(f func(connectivity.State)) (stop func())
	}
	Shut func() error // called when grpc-go's connection was closed; nil if Conn stays open then
}

// Options returns options for a connection of grpc-go that shows s: it never connects, and its
// balancer, a stateProxy, has the state of s. It needs interceptors that make its calls. It stands
// for s if its target has one of the schemes or none.
func (s *Shown) Options(schemes ...string) []grpc.DialOption {
	var resolvers []resolver.Builder
	for _, scheme := range append(schemes, "passthrough", resolver.GetDefaultScheme()) {
		resolvers = append(resolvers, source{s, scheme})
	}
	return []grpc.DialOption{
		grpc.WithResolvers(resolvers...),
		// They replace a library's. They are never used. grpc-go accepts per-RPC credentials in
		// addition.
		grpc.WithCredentialsBundle(nil), grpc.WithTransportCredentials(credentials.NewTLS(nil)),
		grpc.WithIdleTimeout(0), grpc.WithMaxCallAttempts(s.MaxAttempts),
		grpc.WithContextDialer(noDial), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: forever, MaxDelay: forever}}),
	}
}

// Dial returns a connection of grpc-go that shows s, whose calls the interceptors in opts make.
func (s *Shown) Dial(opts ...grpc.DialOption) *grpc.ClientConn {
	dial := func(target string) (*grpc.ClientConn, error) {
		var scheme string
		if u, err := url.Parse(target); err == nil {
			scheme = u.Scheme
		}
		// Dial, not NewClient: Dial builds the balancer at once, so the state is right from the
		// start and Close reaches s. Dial does not make s connect.
		//lint:ignore SA1019 deprecated for its handling of schemes and WithBlock, which is not used here
		return grpc.Dial(target, append(s.Options(scheme), opts...)...)
	}
	cc, err := dial(s.Target)
	if err != nil {
		// grpc-go parses targets as URLs and refuses this one. An escaped target is
		// better than none.
		cc, _ = dial("inproc:" + url.PathEscape(s.Target))
	}
	return cc
}

// A source is the resolver of a connection that shows something. It resolves the target to no
// address, selects the balancer, and passes what is shown to it.
type source struct {
	*Shown
	scheme string
}

func (s source) Scheme() string { return s.scheme }

func (s source) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	config := cc.ParseServiceConfig(withStateProxy(s.ServiceConfig))
	if config.Err != nil {
		config = cc.ParseServiceConfig(withStateProxy(""))
	}
	_ = cc.UpdateState(resolver.State{ServiceConfig: config, Attributes: attributes.New(shownKey{}, s.Shown)})
	return s, nil
}

func (source) ResolveNow(resolver.ResolveNowOptions) {}
func (source) Close()                                {}

type shownKey struct{}

// withStateProxy returns a service config, in JSON, with stateProxy as its balancer.
func withStateProxy(config string) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(config), &all) != nil || all == nil {
		all = make(map[string]json.RawMessage)
	}
	delete(all, "loadBalancingPolicy")
	if States.Found() {
		all["loadBalancingConfig"] = json.RawMessage(`[{"` + stateProxyName + `":{}}]`)
	}
	with, _ := json.Marshal(all) // cannot fail: the values were parsed above
	return string(with)
}

const stateProxyName = "nearcall_state_proxy"

func init() { balancer.Register(stateProxyBuilder{}) }

type stateProxyBuilder struct{}

func (stateProxyBuilder) Name() string { return stateProxyName }

func (stateProxyBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &stateProxy{cc: cc}
}

// A stateProxy is a balancer without connections. It shows a state on a connection of grpc-go, and
// forwards to its Shown what the user asks of that connection.
//
// Lock order: the lock with which Observe calls, then grpc-go's locks. So grpc-go must call a
// stateProxy without holding a lock that UpdateState or NewSubConn takes, as it promises to
// every balancer.
type stateProxy struct {
	cc    balancer.ClientConn
	shown *Shown // nil before the first update
	stop  func() // ends the observation

	// retryProbe makes ResetConnectBackoff reach what is shown. It is a SubConn in an endless
	// backoff, which ResetConnectBackoff ends. It exists only in state TransientFailure, and only
	// if it is shut with the connection. Guarded by the lock with which Observe calls.
	retryProbe balancer.SubConn
}

// UpdateClientConnState implements [balancer.Balancer].
func (m *stateProxy) UpdateClientConnState(s balancer.ClientConnState) error {
	if m.shown == nil {
		shown, ok := s.ResolverState.Attributes.Value(shownKey{}).(*Shown)
		if !ok {
			return errors.New("nearcall: the balancer " + stateProxyName + " is for the connections that ClientConn.GRPC returns")
		}
		m.shown = shown
		m.stop = shown.Conn.Observe(m.show)
	}
	return nil
}

var errShown = errors.New("nearcall: this *grpc.ClientConn makes its calls through a nearcall.ClientConn, and connects nowhere itself")

// show publishes the state s. Observe may call it with a lock held. What has ended shows
// TransientFailure on a connection that must be closed by itself.
func (m *stateProxy) show(s connectivity.State) {
	if s == connectivity.Shutdown {
		if m.shown.Shut != nil {
			return
		}
		s = connectivity.TransientFailure
	}
	m.cc.UpdateState(balancer.State{ConnectivityState: s, Picker: base.NewErrPicker(errShown)})
	if m.retryProbe != nil {
		m.retryProbe.Shutdown()
		m.retryProbe = nil
	}
	if s != connectivity.TransientFailure || m.shown.Shut == nil {
		return
	}
	var retryProbe balancer.SubConn
	//lint:ignore SA1019 deprecated for more than one address
	retryProbe, err := m.cc.NewSubConn([]resolver.Address{{Addr: m.shown.Target}}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) {
			if s.ConnectivityState == connectivity.Idle {
				m.shown.Conn.ResetConnectBackoff()
				retryProbe.Connect()
			}
		},
	})
	if err == nil { // it fails if the connection was closed
		m.retryProbe = retryProbe
		retryProbe.Connect()
	}
}

// forever is a backoff that only ResetConnectBackoff ends.
const forever = math.MaxInt64 / 2

func noDial(context.Context, string) (net.Conn, error) { return nil, errShown }

// ExitIdle implements [balancer.Balancer]. grpc-go calls it for Connect.
func (m *stateProxy) ExitIdle() {
	if m.shown != nil {
		m.shown.Conn.Connect()
	}
}

// Close implements [balancer.Balancer]. The connection of grpc-go was closed, by the
// user or with what it shows.
func (m *stateProxy) Close() {
	switch {
	case m.shown == nil: // before the first update
	case m.shown.Shut != nil:
		_ = m.shown.Shut()
	default:
		m.stop()
	}
}

// ResolverError implements [balancer.Balancer]. A source reports no errors.
func (m *stateProxy) ResolverError(error) {}

// UpdateSubConnState implements [balancer.Balancer]. grpc-go does not call it, because
// the SubConns have a StateListener.
func (m *stateProxy) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
