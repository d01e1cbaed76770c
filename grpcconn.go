package nearcall

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

	"github.com/nearcall/nearcall/internal/connector"
)

// GRPC returns a *grpc.ClientConn that stands for c, for APIs that require the concrete
// type. Interceptors of c get the same one.
//
// Its calls run over c, with c's interceptors, stats handlers and default call options. Its state
// is always c's, Connect and ResetConnectBackoff act on c, Target returns c's target, and
// GetMethodConfig returns the config of [WithDefaultServiceConfig]. Closing one of the two closes
// both.
//
// GRPC creates it on first use and returns the same one afterwards. It costs four
// goroutines until it is closed; its calls cost as much as c's. For targets that go to
// grpc-go it is the connection that makes c's calls.
func (c *ClientConn) GRPC() *grpc.ClientConn {
	return c.conn.GRPC()
}

// DialOptions returns options for a library that calls grpc.NewClient or grpc.Dial itself and takes
// a []grpc.DialOption. The library's *grpc.ClientConn passes its calls to c and makes no
// connection. c uses its own target, dialer and credentials. Pass the options after all
// others: the library's interceptors then run before c's.
//
// Apart from interceptors, only call options of the library affect the calls, such as those of
// [grpc.WithDefaultCallOptions]. Give c the per-RPC credentials, the stats handlers and the service
// config that the calls need.
//
// If the library's target has no scheme, or one of dns, passthrough, unix and unix-abstract,
// Connect connects c, and the state is c's. No call waits for the state. As with all connections of
// grpc.NewClient, the state is Idle until Connect is called.
//
// The options can be used more than once. When the library closes its *grpc.ClientConn, the calls
// through it end with Canceled, as in grpc-go, and c stays open. Close c when the library no longer
// needs it. A *grpc.ClientConn that has made a call costs a goroutine until it is closed.
func (c *ClientConn) DialOptions() []grpc.DialOption {
	of := &libraries{lives: make(map[*grpc.ClientConn]context.Context)}
	return c.optionsOf(source{conn: c, libraries: of}, "dns", "unix", "unix-abstract")
}

// newGRPC returns a connection of grpc-go that stands for c, and whose Close calls shut.
func (c *ClientConn) newGRPC(shut func() error) *grpc.ClientConn {
	dial := func(target string) (*grpc.ClientConn, error) {
		var scheme string
		if u, err := url.Parse(target); err == nil {
			scheme = u.Scheme
		}
		// Dial, not NewClient: Dial builds the balancer at once, so the state is right from the
		// start and Close reaches c. Dial does not make c connect.
		//lint:ignore SA1019 deprecated for its handling of schemes and WithBlock, which is not used here
		return grpc.Dial(target, c.optionsOf(source{conn: c, shut: shut}, scheme)...)
	}
	cc, err := dial(c.target)
	if err != nil {
		// grpc-go parses targets as URLs and refuses this one. An escaped target is
		// better than none.
		cc, _ = dial("inproc:" + url.PathEscape(c.target))
	}
	return cc
}

// optionsOf returns the options of a connection of grpc-go that never connects: its interceptors
// pass every call to c, and its balancer, a stateProxy, shows c's state. s resolves targets with
// one of the schemes, and those without.
func (c *ClientConn) optionsOf(s source, schemes ...string) []grpc.DialOption {
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		switch {
		case s.libraries == nil:
			return c.Invoke(ctx, method, req, reply, opts...)
		case cc.GetState() == connectivity.Shutdown:
			return connector.ErrClosing
		}
		call := s.libraries.begin(ctx, cc)
		defer call.end()
		return call.errorOf(c.Invoke(call.ctx, method, req, reply, opts...))
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		switch {
		case s.libraries == nil:
			return c.NewStream(ctx, desc, method, opts...)
		case cc.GetState() == connectivity.Shutdown:
			return nil, connector.ErrClosing
		}
		return s.libraries.newStream(ctx, cc, desc, func(ctx context.Context) (grpc.ClientStream, error) {
			return c.NewStream(ctx, desc, method, opts...)
		})
	}
	var resolvers []resolver.Builder
	for _, scheme := range append(schemes, "passthrough", resolver.GetDefaultScheme()) {
		s.scheme = scheme
		resolvers = append(resolvers, s)
	}
	return []grpc.DialOption{
		// With WithUnaryInterceptor, unary would run before the interceptors of a library, and skip
		// them.
		grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream),
		grpc.WithResolvers(resolvers...),
		// They replace a library's. They are never used. grpc-go accepts per-RPC credentials in
		// addition.
		grpc.WithCredentialsBundle(nil), grpc.WithTransportCredentials(credentials.NewTLS(nil)),
		grpc.WithIdleTimeout(0), grpc.WithMaxCallAttempts(c.maxAttempts),
		grpc.WithContextDialer(noDial), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: forever, MaxDelay: forever}}),
	}
}

// A source is the resolver of a connection with the options of optionsOf. It resolves the target to
// no address, selects the balancer, and passes itself to it.
type source struct {
	conn      *ClientConn
	scheme    string
	libraries *libraries   // nil for the connection that GRPC returns, which is closed with conn
	shut      func() error // closes conn, for that connection
}

func (s source) Scheme() string { return s.scheme }

func (s source) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	config := cc.ParseServiceConfig(withStateProxy(s.conn.serviceConfig))
	if config.Err != nil {
		config = cc.ParseServiceConfig(withStateProxy(""))
	}
	_ = cc.UpdateState(resolver.State{ServiceConfig: config, Attributes: attributes.New(sourceKey{}, s)})
	return s, nil
}

func (source) ResolveNow(resolver.ResolveNowOptions) {}
func (source) Close()                                {}

type sourceKey struct{}

// withStateProxy returns a service config, in JSON, with stateProxy as its balancer.
func withStateProxy(config string) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(config), &all) != nil || all == nil {
		all = make(map[string]json.RawMessage)
	}
	delete(all, "loadBalancingPolicy")
	all["loadBalancingConfig"] = json.RawMessage(`[{"` + stateProxyName + `":{}}]`)
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

// A stateProxy is a balancer without connections. It shows the state of a ClientConn on a
// connection of grpc-go, and forwards to the ClientConn what the user asks of that connection.
//
// Lock order: the mu of the ClientConn's connector, then grpc-go's locks. So grpc-go must call a
// stateProxy without holding a lock that UpdateState or NewSubConn takes, as it promises to
// every balancer.
type stateProxy struct {
	cc     balancer.ClientConn
	source source // zero before the first update
	stop   func() // ends the observation of source.conn

	// retryProbe makes ResetConnectBackoff reach the ClientConn. It is a SubConn in an endless
	// backoff, which ResetConnectBackoff ends. It exists only in state TransientFailure, and only
	// on the connection that GRPC returns. Guarded by the connector's mu.
	retryProbe balancer.SubConn
}

// UpdateClientConnState implements [balancer.Balancer].
func (m *stateProxy) UpdateClientConnState(s balancer.ClientConnState) error {
	if m.source.conn == nil {
		from, ok := s.ResolverState.Attributes.Value(sourceKey{}).(source)
		if !ok {
			return errors.New("nearcall: the balancer " + stateProxyName + " is for the connections that ClientConn.GRPC returns")
		}
		m.source = from
		m.stop = from.conn.conn.Observe(m.show)
	}
	return nil
}

var errShown = errors.New("nearcall: this *grpc.ClientConn makes its calls through a nearcall.ClientConn, and connects nowhere itself")

// show publishes the state s. The connector calls it with its mu held. If the ClientConn is closed,
// a library's connection shows TransientFailure, because only the library can close it.
func (m *stateProxy) show(s connectivity.State) {
	if s == connectivity.Shutdown {
		if m.source.libraries == nil {
			return
		}
		s = connectivity.TransientFailure
	}
	m.cc.UpdateState(balancer.State{ConnectivityState: s, Picker: base.NewErrPicker(errShown)})
	if m.retryProbe != nil {
		m.retryProbe.Shutdown()
		m.retryProbe = nil
	}
	if s != connectivity.TransientFailure || m.source.libraries != nil {
		return
	}
	var retryProbe balancer.SubConn
	//lint:ignore SA1019 deprecated for more than one address
	retryProbe, err := m.cc.NewSubConn([]resolver.Address{{Addr: m.source.conn.target}}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) {
			if s.ConnectivityState == connectivity.Idle {
				m.source.conn.ResetConnectBackoff()
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
	if m.source.conn != nil {
		m.source.conn.Connect()
	}
}

// Close implements [balancer.Balancer]. The connection of grpc-go was closed, by the
// user or by its ClientConn.
func (m *stateProxy) Close() {
	switch {
	case m.source.conn == nil: // before the first update
	case m.source.libraries == nil:
		_ = m.source.shut()
	default:
		m.stop()
	}
}

// ResolverError implements [balancer.Balancer]. A source reports no errors.
func (m *stateProxy) ResolverError(error) {}

// UpdateSubConnState implements [balancer.Balancer]. grpc-go does not call it, because
// the SubConns have a StateListener.
func (m *stateProxy) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
