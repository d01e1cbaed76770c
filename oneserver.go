package nearcall

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A oneServer is a connection to one server, in this process or another. Its connector has the
// states, and the session for the calls. It implements [connection].
type oneServer struct {
	*connector.Connector
	of     *ClientConn
	client *client.Client

	grpcMu sync.Mutex
	grpc   *grpc.ClientConn // the result of GRPC; nil before the first use
	closed bool
}

// dialOneServer returns a connection to t, which has one of nearcall's own schemes.
func dialOneServer(target string, t *targets.Target, o *options.Client) (_ *ClientConn, err error) {
	cfg := connector.Config{Name: target, Backoff: t.Scheme.Backoff}
	if t.Scheme.Sockets {
		cfg.Idle = idleness(o)
	}
	var authority string
	if cfg.Dialer, authority, err = t.Dialer(o, caller(o, cfg.Idle)); err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	c, err := newOneServer(target, authority, cfg, o)
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	c.persist()
	return c.of, nil
}

// newOneServer returns a connection to target. It connects as the parameter how says, except
// where an option in o says otherwise. If an option is invalid, newOneServer returns its error, and
// a connection whose calls fail with it.
func newOneServer(target, authority string, how connector.Config, o *options.Client) (_ *oneServer, err error) {
	var service *client.ServiceConfig
	if o.ConfigJSON != nil {
		if service, err = client.ConfigOf(o, *o.ConfigJSON); err != nil {
			how.Dialer = connector.Failing{Err: err}
		}
	}
	if o.ConnectBackoff != nil {
		how.Backoff = *o.ConnectBackoff
	}
	how.Options = o
	c := new(oneServer)
	how.OnSession = func(s link.Session) { c.client.BeginSession(s) }
	c.Connector = connector.New(how)
	c.of = &ClientConn{opts: o, target: target, conn: c}
	c.client = newClient(o, client.Config{Sessions: c.Connector, Service: service}, c.GRPC, authority)
	return c, err
}

// persist makes the connection stay connected if the options say so.
func (c *oneServer) persist() {
	if c.Options.Persistent {
		c.Persist()
	}
}

// Invoke implements [connection].
func (c *oneServer) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.Idle.Begin()
	defer c.Idle.End()
	return c.client.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements [connection].
func (c *oneServer) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.Idle.Stream(opts, func(opts []grpc.CallOption) (grpc.ClientStream, error) {
		return c.client.NewStream(ctx, desc, method, opts...)
	})
}

// GRPC implements [connection].
func (c *oneServer) GRPC() *grpc.ClientConn {
	c.grpcMu.Lock()
	defer c.grpcMu.Unlock()
	if c.grpc == nil {
		c.grpc = c.of.newGRPC(c.shut)
		if c.closed {
			_ = c.grpc.Close()
		}
	}
	return c.grpc
}

// Close implements [connection].
func (c *oneServer) Close() error {
	err := c.shut()
	c.grpcMu.Lock()
	c.closed = true
	shown := c.grpc
	c.grpcMu.Unlock()
	if shown != nil {
		_ = shown.Close() // this calls shut again
	}
	return err
}

// shut closes the connection, except the *grpc.ClientConn that GRPC has returned.
func (c *oneServer) shut() error {
	err := c.Connector.Close()
	if reason := c.Closed; reason != nil {
		// PeerConn has returned the connection. Its calls end with the peer's session, and still
		// receive what has arrived before that.
		c.client.Refuse(reason)
	} else {
		c.client.Close(connector.ErrClosing)
	}
	return err
}
