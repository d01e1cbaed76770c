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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
)

// GRPC returns a *grpc.ClientConn that stands for c, for APIs that require the concrete
// type. Interceptors of c get the same one.
//
// Its calls run over c, with c's interceptors, stats handlers and default call options.
// Its state is always c's, Connect and ResetConnectBackoff act on c, Target returns c's
// target, and GetMethodConfig returns what [WithDefaultServiceConfig] set. Closing one
// of the two closes both.
//
// GRPC creates it on first use and returns the same one afterwards. It costs four
// goroutines until it is closed; its calls cost as much as c's. For targets that go to
// grpc-go it is the connection that makes c's calls.
func (c *ClientConn) GRPC() *grpc.ClientConn {
	if c.remote != nil {
		return c.remote
	}
	c.grpcMu.Lock()
	defer c.grpcMu.Unlock()
	if c.grpc == nil {
		c.grpc = c.newGRPC()
		if c.closed {
			_ = c.grpc.Close()
		}
	}
	return c.grpc
}

// newGRPC returns a connection of grpc-go that never connects: its interceptors pass
// every call to c, and its balancer, a mirror, shows c's state.
func (c *ClientConn) newGRPC() *grpc.ClientConn {
	unary := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return c.Invoke(ctx, method, req, reply, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.NewStream(ctx, desc, method, opts...)
	}
	dial := func(target string) (*grpc.ClientConn, error) {
		var scheme string
		if u, err := url.Parse(target); err == nil {
			scheme = u.Scheme
		}
		// Dial, not NewClient: Dial builds the balancer at once, so the state is right from the
		// start and Close reaches c. Dial does not make c connect.
		//lint:ignore SA1019 deprecated for its handling of schemes and WithBlock, which is not used here
		return grpc.Dial(target,
			grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream),
			grpc.WithResolvers(source{c, scheme}, source{c, "passthrough"}, source{c, resolver.GetDefaultScheme()}),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithIdleTimeout(0), grpc.WithMaxCallAttempts(c.maxAttempts),
			grpc.WithContextDialer(noDial), grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: forever, MaxDelay: forever}}),
		)
	}
	cc, err := dial(c.target)
	if err != nil {
		// grpc-go parses targets as URLs and refuses this one. An escaped target is
		// better than none.
		cc, _ = dial("inproc:" + url.PathEscape(c.target))
	}
	return cc
}

// A source is the resolver of the connection that newGRPC returns. It resolves the
// target to no address, selects the balancer, and passes conn to it.
type source struct {
	conn   *ClientConn
	scheme string
}

func (s source) Scheme() string { return s.scheme }

func (s source) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	config := cc.ParseServiceConfig(mirrored(s.conn.serviceConfig))
	if config.Err != nil {
		config = cc.ParseServiceConfig(mirrored(""))
	}
	_ = cc.UpdateState(resolver.State{ServiceConfig: config, Attributes: attributes.New(sourceKey{}, s.conn)})
	return s, nil
}

func (source) ResolveNow(resolver.ResolveNowOptions) {}
func (source) Close()                                {}

type sourceKey struct{}

// mirrored returns a service config, in JSON, with the mirror as its balancer.
func mirrored(config string) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(config), &all) != nil || all == nil {
		all = make(map[string]json.RawMessage)
	}
	delete(all, "loadBalancingPolicy")
	all["loadBalancingConfig"] = json.RawMessage(`[{"` + mirrorName + `":{}}]`)
	with, _ := json.Marshal(all) // cannot fail: the values were parsed above
	return string(with)
}

const mirrorName = "nearcall_mirror"

func init() { balancer.Register(mirrorBuilder{}) }

type mirrorBuilder struct{}

func (mirrorBuilder) Name() string { return mirrorName }

func (mirrorBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &mirror{cc: cc}
}

// A mirror is a balancer without connections. It shows the state of conn on a connection of
// grpc-go, and forwards to conn what the user asks of that connection.
//
// Lock order: the mu of conn's connector, then grpc-go's locks. So grpc-go must call a
// mirror without holding a lock that UpdateState or NewSubConn takes, as it promises to
// every balancer.
type mirror struct {
	cc   balancer.ClientConn
	conn *ClientConn // nil before the first update

	// bell makes ResetConnectBackoff reach conn. It is a SubConn in an endless backoff, which
	// ResetConnectBackoff ends. It exists only in state TransientFailure. Guarded by the
	// connector's mu.
	bell balancer.SubConn
}

// UpdateClientConnState implements [balancer.Balancer].
func (m *mirror) UpdateClientConnState(s balancer.ClientConnState) error {
	if m.conn == nil {
		conn, ok := s.ResolverState.Attributes.Value(sourceKey{}).(*ClientConn)
		if !ok {
			return errors.New("nearcall: the balancer " + mirrorName + " is for the connections that ClientConn.GRPC returns")
		}
		m.conn = conn
		conn.conn.Observe(m.show)
	}
	return nil
}

var errShown = errors.New("nearcall: this *grpc.ClientConn makes its calls through a nearcall.ClientConn, and connects nowhere itself")

// show publishes the state s. The connector calls it with its mu held.
func (m *mirror) show(s connectivity.State) {
	m.cc.UpdateState(balancer.State{ConnectivityState: s, Picker: base.NewErrPicker(errShown)})
	if m.bell != nil {
		m.bell.Shutdown()
		m.bell = nil
	}
	if s != connectivity.TransientFailure {
		return
	}
	var bell balancer.SubConn
	//lint:ignore SA1019 deprecated for more than one address
	bell, err := m.cc.NewSubConn([]resolver.Address{{Addr: m.conn.target}}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) {
			if s.ConnectivityState == connectivity.Idle {
				m.conn.conn.ResetBackoff()
				bell.Connect()
			}
		},
	})
	if err == nil { // it fails if the connection was closed
		m.bell = bell
		bell.Connect()
	}
}

// forever is a backoff that only ResetConnectBackoff ends.
const forever = math.MaxInt64 / 2

func noDial(context.Context, string) (net.Conn, error) { return nil, errShown }

// ExitIdle implements [balancer.Balancer]. grpc-go calls it for Connect.
func (m *mirror) ExitIdle() {
	if m.conn != nil {
		m.conn.Connect()
	}
}

// Close implements [balancer.Balancer]. The connection of grpc-go was closed, by the
// user or by conn.
func (m *mirror) Close() {
	if m.conn != nil {
		_ = m.conn.shut()
	}
}

// ResolverError implements [balancer.Balancer]. A source reports no errors.
func (m *mirror) ResolverError(error) {}

// UpdateSubConnState implements [balancer.Balancer]. grpc-go does not call it, because
// the SubConns have a StateListener.
func (m *mirror) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
