package nearcall

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/balance"
	"github.com/nearcall/nearcall/internal/call"
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
	client  *call.Client
	idle    *connector.Idleness // counts the calls; may be nil
}

// newResolved returns a connection to a target that grpc-go resolves.
func newResolved(target string, o *options.Dial) (*ClientConn, error) {
	creds, err := transportOf(o)
	if err != nil {
		return nil, err
	}
	c := new(resolved)
	if !o.Persistent {
		c.idle = connector.NewIdleness(o.IdleTimeout)
	}
	serve(o, c.idle)
	endpoints := targets.NewEndpoints(o, creds)
	cfg := balance.Config{
		Target: target, Creds: creds, Authority: o.Authority, ServiceConfig: o.ServiceConfig, Resolvers: o.Resolvers, Stats: o.Stats, Options: forChannel(o), UserDial: o.Conn,
		ParseService: o.ParseService,
		Dial:         endpoints.Dial, Handshake: endpoints.Handshake,
		OnSession: func(s link.Session) { c.client.BeginSession(s) },
		Calls:     c, CallCreds: o.Creds,
		Whole: func(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return preparing{conn} },
	}
	if c.idle != nil {
		cfg.IdleTimeout, cfg.Active = o.IdleTimeout, c.idle.Active
	}
	if o.Conn == nil && o.Proxied() {
		cfg.Dial = nil
	}
	if c.channel, err = balance.New(cfg); err != nil {
		return nil, named(err)
	}
	own := o.ClientConfig
	own.Balancer = c.channel
	c.client = newClient(own, c.channel.Conn, c.channel.Authority(), o.UserAgent)
	c.whole = whole{c.channel.Conn(), c.client, targets.Hint(target, o.Resolvers)}
	if o.Persistent {
		c.Observe(func(s connectivity.State) {
			if s == connectivity.Idle {
				c.Connect()
			}
		})
	}
	return &ClientConn{target: target, maxAttempts: o.MaxAttempts, conn: c}, nil
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
func transportOf(o *options.Dial) (credentials.TransportCredentials, error) {
	creds := o.Transport
	if o.Bundle != nil {
		if creds != nil {
			return nil, errors.New("a credentials.Bundle cannot be used together with transport credentials")
		}
		if creds = o.Bundle.TransportCredentials(); creds == nil {
			return nil, errors.New("the credentials.Bundle has no transport credentials")
		}
	}
	if creds != nil && creds.Info().SecurityProtocol == "insecure" {
		for _, c := range o.Creds {
			if c.RequireTransportSecurity() {
				return nil, errors.New("the credentials require transport level security (use nearcall.WithTransportCredentials() to set)")
			}
		}
	}
	return creds, nil
}

// forChannel returns the options that grpc-go needs to connect, and to call servers that
// speak only gRPC.
func forChannel(o *options.Dial) []grpc.DialOption {
	opts := append(o.GRPCKeepalive(), grpc.WithMaxCallAttempts(o.MaxAttempts))
	opts = append(opts, o.Channel...)
	if o.Backoff != nil {
		opts = append(opts, grpc.WithConnectParams(grpc.ConnectParams{Backoff: *o.Backoff, MinConnectTimeout: o.Timeout}))
	}
	if o.Authority != "" {
		opts = append(opts, grpc.WithAuthority(o.Authority))
	}
	if o.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(o.UserAgent))
	}
	if o.NoRetry {
		opts = append(opts, grpc.WithDisableRetry())
	}
	if n := o.Socket.Window; n > 0 {
		opts = append(opts, grpc.WithInitialWindowSize(int32(n)))
	}
	if n := o.Socket.ConnWindow; n > 0 {
		opts = append(opts, grpc.WithInitialConnWindowSize(int32(n)))
	}
	if n := o.Socket.MaxHeaderBytes; n > 0 {
		opts = append(opts, grpc.WithMaxHeaderListSize(uint32(n)))
	}
	return opts
}

var _ call.Balancer = (*balance.Channel)(nil)
