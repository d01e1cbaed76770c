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

// GRPC returns a real *grpc.ClientConn whose calls, state and Close are c's, for
// APIs that demand the type. It is the one that interceptors of c are shown.
//
// Its calls take c's path, interceptors, stats handlers and default call options of
// c included. Its state is c's at any time, Connect and ResetConnectBackoff act on c,
// Target returns c's target, and GetMethodConfig what [WithDefaultServiceConfig] says.
// Closing one of the two closes both.
//
// It is made when it is first asked for, and every call returns the same. It costs four
// goroutines until it is closed, and its calls cost what c's do. For targets that
// go to grpc-go it is the connection that makes c's calls.
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

// newGRPC makes a connection of grpc-go that makes none itself: its interceptors hand
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
		// Dial and not NewClient: it builds the balancer at once, so that the state is
		// right from the start and Close reaches c, yet does not ask it to connect.
		//lint:ignore SA1019 deprecated for what it does with schemes and WithBlock, which plays no part here
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
		// grpc-go cannot parse the target, which it takes for a URL. It is shown
		// another rather than nothing.
		cc, _ = dial("inproc:" + url.PathEscape(c.target))
	}
	return cc
}

// A source is the resolver of such a connection. It resolves the target to no
// address, names the balancer, and leads it to conn.
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

// mirrored returns the service config, in JSON, with a mirror for its balancer.
func mirrored(config string) string {
	all := make(map[string]json.RawMessage)
	if json.Unmarshal([]byte(config), &all) != nil || all == nil {
		all = make(map[string]json.RawMessage)
	}
	delete(all, "loadBalancingPolicy")
	all["loadBalancingConfig"] = json.RawMessage(`[{"` + mirrorName + `":{}}]`)
	with, _ := json.Marshal(all) // of messages that were parsed
	return string(with)
}

const mirrorName = "nearcall_mirror"

func init() { balancer.Register(mirrorBuilder{}) }

type mirrorBuilder struct{}

func (mirrorBuilder) Name() string { return mirrorName }

func (mirrorBuilder) Build(cc balancer.ClientConn, _ balancer.BuildOptions) balancer.Balancer {
	return &mirror{cc: cc}
}

// A mirror is a balancer that balances nothing: it shows the state of conn on a
// connection of grpc-go, and passes on what is asked of that.
//
// Locks are taken in this order: conn's connector's, then grpc-go's. So grpc-go must
// call a mirror without holding any that UpdateState or NewSubConn takes, as it
// promises to every balancer.
type mirror struct {
	cc   balancer.ClientConn
	conn *ClientConn // nil before the first update

	// Guarded by the connector's mu. It is there in state TransientFailure, as a
	// connection that waits to be tried again, for ever: ResetConnectBackoff wakes it.
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

// show is told of the state. The connector's mu is held.
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
	//lint:ignore SA1019 deprecated for more addresses than one
	bell, err := m.cc.NewSubConn([]resolver.Address{{Addr: m.conn.target}}, balancer.NewSubConnOptions{
		StateListener: func(s balancer.SubConnState) {
			if s.ConnectivityState == connectivity.Idle {
				m.conn.conn.ResetBackoff()
				bell.Connect()
			}
		},
	})
	if err == nil { // or it is closed meanwhile
		m.bell = bell
		bell.Connect()
	}
}

// forever is a backoff that only ResetConnectBackoff ends.
const forever = math.MaxInt64 / 2

func noDial(context.Context, string) (net.Conn, error) { return nil, errShown }

// ExitIdle implements [balancer.Balancer]: Connect was called.
func (m *mirror) ExitIdle() {
	if m.conn != nil {
		m.conn.Connect()
	}
}

// Close implements [balancer.Balancer]: the connection of grpc-go was closed, by its
// user or by conn itself.
func (m *mirror) Close() {
	if m.conn != nil {
		_ = m.conn.shut()
	}
}

// ResolverError implements [balancer.Balancer]. There are none.
func (m *mirror) ResolverError(error) {}

// UpdateSubConnState implements [balancer.Balancer]. It is not called.
func (m *mirror) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}
