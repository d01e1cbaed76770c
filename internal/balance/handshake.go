package balance

import (
	"cmp"
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/grpcinside"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/relay"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
)

// A handshaker is the credentials of a channel's *grpc.ClientConn. Its handshake ends with a session
// of the SubConn. It implements [credentials.TransportCredentials].
type handshaker struct {
	credentials.TransportCredentials // the user's
	channel                          *Channel
	onlyGRPC                         bool // set for the credentials of a single SubConn: its calls use gRPC
}

// A bundle is the credentials that a policy has given a SubConn. If a bundle has credentials for
// calls, which grpc-go's transport adds, its SubConn stays with gRPC.
type bundle struct {
	credentials.Bundle
	channel *Channel
}

// TransportCredentials implements [credentials.Bundle].
func (b bundle) TransportCredentials() credentials.TransportCredentials {
	inner := b.Bundle.TransportCredentials()
	if inner == nil {
		inner = b.channel.cfg.Creds
	}
	return &handshaker{inner, b.channel, true}
}

// Wrap implements [grpcinside.Wrapper].
func (h *handshaker) Wrap(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	o.DialCreds, o.Dialer = h.TransportCredentials, h.channel.userDial()
	p := &policy{ClientConn: cc, channel: h.channel}
	p.CC, p.Opts = p, o
	h.channel.watchIdleness()
	return p
}

// dial connects to an address of a SubConn.
func (c *Channel) dial(ctx context.Context, address string) (net.Conn, error) {
	m, _ := markOf(ctx)
	return c.cfg.Dial(ctx, c.cfg.Options.AuthorityOr(cmp.Or(m.serverName, c.authority)), address)
}

func (h *handshaker) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	m, ok := markOf(ctx)
	if !ok {
		h.channel.goWhole()
		m.sc = &subConn{channel: h.channel}
	}
	sc := m.sc
	var s link.Session
	var conn net.Conn
	var auth credentials.AuthInfo
	var err error
	if h.onlyGRPC {
		conn, auth, err = h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	} else {
		s, conn, auth, err = h.channel.cfg.Handshake(ctx, authority, raw)
	}
	if err != nil {
		return nil, nil, err
	}
	c := &current{Session: s}
	if authority != h.channel.authority {
		c.authority = authority
	}
	if s != nil {
		h.channel.cfg.OnSession(s)
		if m.metadata != nil {
			c.metadata = *m.metadata
		}
		serve := func(opts ...grpc.ServerOption) *grpc.Server { return relaying(s, opts) }
		return grpcinside.NewSessionConn(s, serve, sc.begin(c)), s.Peer().AuthInfo, nil
	}
	peer := link.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: auth, Caps: link.Caps{OneShot: true}}
	c.pinned = true
	c.Session = grpcgo.NewSession(&pinned{h.channel, sc, c}, h.channel.cfg.Target, authority, peer, func() {})
	h.channel.cfg.OnSession(c.Session)
	over := &ending{conn, sc.begin(c)}
	if r, ok := conn.(readier); ok {
		return readyEnding{over, r}, auth, nil
	}
	return over, auth, nil
}

// relaying returns a server that relays calls to s.
func relaying(s link.Session, opts []grpc.ServerOption) *grpc.Server {
	accept := func(context.Context) (link.Acceptor, error) {
		return &relay.Acceptor{To: s, Go: func(f func()) { go f() }}, nil
	}
	return grpc.NewServer(append(opts, grpc.UnknownServiceHandler(grpcgo.Handler(accept)), grpc.ForceServerCodecV2(grpcgo.Codec()))...)
}

// UsesXDS says whether the credentials come from xDS, for grpc-go's policies.
func (h *handshaker) UsesXDS() bool {
	x, ok := h.TransportCredentials.(interface{ UsesXDS() bool })
	return ok && x.UsesXDS()
}

func (h *handshaker) Clone() credentials.TransportCredentials {
	return &handshaker{h.TransportCredentials.Clone(), h.channel, h.onlyGRPC}
}

// An ending is a connection that calls end when it is closed.
type ending struct {
	net.Conn
	end func()
}

// Close implements [net.Conn].
func (c *ending) Close() error {
	c.end()
	return c.Conn.Close()
}

// A readier is a connection that can wait for something to read. grpc-go knows the method.
type readier interface {
	ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
}

// A readyEnding is an ending connection that is a readier.
type readyEnding struct {
	*ending
	readier
}
