package nearcall

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/balance"
	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// newBalanced returns a connection to a target of grpc-go.
func newBalanced(target string, o *options.Client) (*ClientConn, error) {
	creds, err := transportOf(o)
	if err != nil {
		return nil, err
	}
	c := &ClientConn{opts: o, target: target, hint: targets.Hint(target, o)}
	idle := idleness(o)
	endpoints := targets.NewEndpoints(o, caller(o, idle), creds)
	cfg := balance.Config{
		Target: target, Options: o, Creds: creds,
		Dial: endpoints.Dial, Handshake: endpoints.Handshake,
		OnSession: func(s link.Session) { c.client.BeginSession(s) },
		Calls:     c, Direct: direct{c, o.PerRPC},
	}
	if idle != nil {
		cfg.Active = idle.Active
	}
	if !o.HasConnDialer() && o.Proxied() {
		cfg.Dial = nil
	}
	if c.channel, err = balance.New(cfg); err != nil {
		return nil, named(err)
	}
	c.remote, c.idle = c.channel.Conn(), idle
	c.state = c.remote
	c.client = c.newClient(call.ClientConfig{Balancer: c.channel}, c.channel.Authority())
	if o.Persistent {
		c.observe(func(s connectivity.State) {
			if s == connectivity.Idle {
				c.remote.Connect()
			}
		})
	}
	return c, nil
}

// transportOf returns the transport credentials that the options set, nil for none.
func transportOf(o *options.Client) (credentials.TransportCredentials, error) {
	creds, err := o.Credentials()
	if err == nil && creds != nil && creds.Info().SecurityProtocol == "insecure" {
		err = o.CheckInsecure()
	}
	return creds, err
}

// direct makes calls that grpc-go must make as a whole. It implements [grpc.ClientConnInterface].
type direct struct {
	conn  *ClientConn
	creds []credentials.PerRPCCredentials
}

func (d direct) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return d.conn.channel.Whole(d.creds).Invoke(ctx, method, forGRPC(args), reply, opts...)
}

func (d direct) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := d.conn.channel.Whole(d.creds).NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return remoteStream{s}, nil
}

var _ call.Balancer = (*balance.Channel)(nil)
