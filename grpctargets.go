package nearcall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/balance"
	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A whole is a connection of grpc-go. It implements [connection].
type whole struct {
	*grpc.ClientConn
	calls grpc.ClientConnInterface // makes the calls
	hint  string                   // appended to Unavailable errors
}

// newWhole returns a connection to a target that goes to grpc-go as a whole.
func newWhole(target string, t *targets.Target, o *options.Client) (*ClientConn, error) {
	if err := checkWhole(o); err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	conn, err := grpc.NewClient(t.Rest, o.ToGRPC...)
	if err != nil {
		return nil, named(err)
	}
	if !t.Insists {
		logger.Infof("calls to %q go to grpc-go, over HTTP/2, because of WithGRPCDialOptions", target)
	}
	return &ClientConn{opts: o, target: target, conn: &whole{conn, preparing{conn}, targets.Hint(t.Rest, o)}}, nil
}

// Invoke implements [connection]. It appends the hint to the error of a call that has not reached a
// server.
func (c *whole) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.hint == "" {
		return c.calls.Invoke(ctx, method, args, reply, opts...)
	}
	var server peer.Peer
	err := c.calls.Invoke(ctx, method, args, reply, append(slices.Clip(opts), grpc.Peer(&server))...)
	if server.Addr != nil {
		return err
	}
	return withHint(err, c.hint)
}

// NewStream implements [connection].
func (c *whole) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.calls.NewStream(ctx, desc, method, opts...)
	return s, withHint(err, c.hint)
}

// GRPC implements [connection].
func (c *whole) GRPC() *grpc.ClientConn { return c.ClientConn }

// Observe implements [connection]. Here f may call the connection.
func (c *whole) Observe(f func(connectivity.State)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for s := c.GetState(); ; s = c.GetState() {
			f(s)
			if s == connectivity.Shutdown || !c.WaitForStateChange(ctx, s) {
				return
			}
		}
	}()
	return cancel
}

// Current implements [connection].
func (*whole) Current() link.Session { return nil }

// withHint appends hint, a result of [targets.Hint], to the message of err if err is Unavailable.
func withHint(err error, hint string) error {
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok && hint != "" && s.GRPCStatus().Code() == codes.Unavailable {
		p := s.GRPCStatus().Proto()
		p.Message += hint
		return status.FromProto(p).Err()
	}
	return err
}

// named returns an error of grpc.NewClient that names options as nearcall's.
func named(err error) error {
	if text := err.Error(); strings.Contains(text, "grpc.With") {
		return errors.New(strings.ReplaceAll(text, "grpc.With", "nearcall.With"))
	}
	return err
}

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
