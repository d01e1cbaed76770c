package nearcall

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/balance"
	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A resolved is a connection to the servers that grpc-go finds and chooses. The connection of grpc-go
// has the states, and the client makes the calls, each over the nearest path to its server. It
// implements [connection].
type resolved struct {
	whole
	channel *balance.Channel
	client  *client.Client
	idle    *connector.Idleness // counts the calls; may be nil
}

// newResolved returns a connection to a target that grpc-go resolves.
func newResolved(target string, o *options.Client) (*ClientConn, error) {
	creds, err := transportOf(o)
	if err != nil {
		return nil, err
	}
	c := &resolved{idle: idleness(o)}
	endpoints := targets.NewEndpoints(o, caller(o, c.idle), creds)
	cfg := balance.Config{
		Target: target, Options: o, Creds: creds,
		Dial: endpoints.Dial, Handshake: endpoints.Handshake,
		OnSession: func(s link.Session) { c.client.BeginSession(s) },
		Calls:     c,
		Whole:     func(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return preparing{conn} },
	}
	if c.idle != nil {
		cfg.Active = c.idle.Active
	}
	if !o.HasConnDialer() && o.Proxied() {
		cfg.Dial = nil
	}
	if c.channel, err = balance.New(cfg); err != nil {
		return nil, named(err)
	}
	c.client = newClient(o, client.Config{Balancer: c.channel}, c.channel.Conn, c.channel.Authority())
	c.whole = whole{c.channel.Conn(), c.client, targets.Hint(target, o)}
	if o.Persistent {
		c.Observe(func(s connectivity.State) {
			if s == connectivity.Idle {
				c.Connect()
			}
		})
	}
	return &ClientConn{opts: o, target: target, conn: c}, nil
}

// Invoke implements [connection].
func (c *resolved) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.idle.Begin()
	defer c.idle.End()
	return c.whole.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements [connection].
func (c *resolved) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.idle.Stream(opts, func(opts []grpc.CallOption) (grpc.ClientStream, error) {
		return c.whole.NewStream(ctx, desc, method, opts...)
	})
}

// Close implements [connection].
func (c *resolved) Close() error {
	err := c.channel.Close()
	c.client.Close(connector.ErrClosing)
	return err
}

// transportOf returns the transport credentials that the options set, nil for none.
func transportOf(o *options.Client) (credentials.TransportCredentials, error) {
	creds, err := o.Credentials()
	if err == nil && creds != nil && creds.Info().SecurityProtocol == "insecure" {
		err = o.CheckInsecure()
	}
	return creds, err
}

var _ client.Balancer = (*balance.Channel)(nil)
