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

// newBalanced returns a connection to a target of grpc-go.
func newBalanced(target string, o *options.Dial) (*ClientConn, error) {
	creds, err := transportOf(o)
	if err != nil {
		return nil, err
	}
	c := &ClientConn{target: target, hint: targets.Hint(target, o.Resolvers), maxAttempts: o.MaxAttempts}
	idle := connector.NewIdleness(o.IdleTimeout)
	if o.Persistent {
		idle = nil
	}
	serve(o, idle)
	endpoints := targets.NewEndpoints(o, creds)
	cfg := balance.Config{
		Target: target, Creds: creds, Authority: o.Authority, ServiceConfig: o.ServiceConfig, Resolvers: o.Resolvers, Stats: o.Stats, Options: forChannel(o), UserDial: o.Conn,
		ParseService: o.ParseService,
		Dial:         endpoints.Dial, Handshake: endpoints.Handshake,
		OnSession: func(s link.Session) { c.client.BeginSession(s) },
		Calls:     c, Direct: direct{c, o.Creds},
	}
	if idle != nil {
		cfg.IdleTimeout, cfg.Active = o.IdleTimeout, idle.Active
	}
	if o.Conn == nil && o.Proxied() {
		cfg.Dial = nil
	}
	if c.channel, err = balance.New(cfg); err != nil {
		return nil, named(err)
	}
	c.remote, c.idle = c.channel.Conn(), idle
	c.state = c.remote
	own := o.ClientConfig
	own.Balancer = c.channel
	c.client = c.newClient(own, c.channel.Authority(), o.UserAgent)
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
