package nearcall

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
)

// A ClientConn makes calls to one target. It implements
// [grpc.ClientConnInterface], so that generated NewXClient functions take it.
// Its methods may be called by any goroutine.
type ClientConn struct {
	target string
	remote *grpc.ClientConn // for targets of grpc-go; the rest is unused then
	hint   string           // for errors of remote that say it cannot connect
	client *call.Client
	conn   *connector.Connector

	serviceConfig string // as the user gave it, in JSON
	maxAttempts   int    // as the user limits those of serviceConfig's retry policies; 0 for gRPC's default

	grpcMu sync.Mutex
	grpc   *grpc.ClientConn // see GRPC; nil before somebody asks
	closed bool
}

// NewClient returns a connection to target. It does not connect before the
// first call or [ClientConn.Connect], and reconnects with backoff.
//
// The target is one that a [Server] listens on:
//
//   - inproc:NAME is the server of this process that listens on NAME.
//   - unix:PATH and unix:///PATH are a unix socket, which becomes shared memory on
//     Linux where the server agrees: see [WithoutUpgrade]. PATH is taken as it
//     stands, nothing in it is unescaped.
//   - shm:PATH and shm:///PATH are shared memory and nothing else, set up over the
//     unix socket PATH. It is available on Linux alone.
//   - unix-abstract:NAME is one of Linux's abstract unix sockets.
//   - tcp:HOST:PORT is TCP, with the credentials of [WithTransportCredentials].
//     Without any it is refused, unless HOST is a literal loopback address or
//     localhost. Proxies are not used.
//
// grpc:TARGET, and every target that is not nearcall's own, goes to grpc-go,
// with the options that it knows; an ordinary gRPC server at a unix socket is
// grpc:unix:PATH. Schemes may be in upper case, as in gRPC.
func NewClient(target string, opts ...DialOption) (*ClientConn, error) {
	o := newDialOptions(opts)
	if o.dialer != nil && o.err == nil {
		return newClientConn(target, target, nearBackoff, o), nil
	}
	t, err := parseTarget(target)
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	if t.scheme.dialer == nil {
		remote, err := grpc.NewClient(t.rest, o.grpc...)
		if err != nil {
			return nil, err
		}
		return &ClientConn{target: target, remote: remote, hint: slip(t.rest)}, nil
	}
	authority, err := "", o.err
	if err == nil {
		o.dialer, authority, err = t.scheme.dialer(t, o)
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	c := newClientConn(target, authority, t.scheme.backoff, o)
	if t.scheme.sockets {
		c.conn.IdleAfter(o.idle)
	}
	return c, nil
}

const userAgent = "nearcall/" + Version

// newClientConn returns a connection whose attempts to connect follow each other by b,
// unless an option says otherwise.
func newClientConn(target, authority string, b backoff.Config, o *dialOptions) *ClientConn {
	if o.backoff != nil {
		b = *o.backoff
	}
	c := &ClientConn{target: target, maxAttempts: o.attempts}
	c.conn = connector.New(connector.Config{
		Dialer: o.dialer, Backoff: b, Timeout: o.timeout,
		OnSession: func(s link.Session) { c.client.BeginSession(s) },
	})
	if o.serviceConfig != nil {
		c.serviceConfig = *o.serviceConfig
	}
	cfg := o.ClientConfig
	cfg.Sessions = c.conn
	cfg.GRPC = c.GRPC
	if cfg.Authority == "" {
		cfg.Authority = authority
	}
	if cfg.UserAgent != "" {
		cfg.UserAgent += " "
	}
	cfg.UserAgent += userAgent
	c.client = call.NewClient(cfg)
	return c
}

var errNilConn = status.Error(codes.Internal, "nearcall: the ClientConn is nil; check the error of NewClient")

// Invoke makes a unary call. It is called by generated code. All errors are
// status errors, unless an interceptor returns another.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	switch {
	case c == nil:
		return errNilConn
	case c.remote != nil:
		return withHint(c.remote.Invoke(ctx, method, forGRPC(args), reply, opts...), c.hint)
	case c.conn.Idle != nil:
		c.conn.Idle.Begin()
		defer c.conn.Idle.End()
	}
	return c.client.Invoke(ctx, method, args, reply, opts...)
}

// NewStream starts a stream. It is called by generated code. To free what the
// stream holds, do one of what [grpc.ClientConn.NewStream] lists: close the
// connection, cancel ctx, receive until an error, or get an error other than
// io.EOF from SendMsg.
func (c *ClientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	switch {
	case c == nil:
		return nil, errNilConn
	case c.remote != nil:
		s, err := c.remote.NewStream(ctx, desc, method, opts...)
		if err != nil {
			return nil, withHint(err, c.hint)
		}
		return remoteStream{s}, nil
	case c.conn.Idle != nil:
		return c.conn.Idle.Stream(opts, func(opts []grpc.CallOption) (grpc.ClientStream, error) {
			return c.client.NewStream(ctx, desc, method, opts...)
		})
	}
	return c.client.NewStream(ctx, desc, method, opts...)
}

// Close ends the connection. Calls that run, and later ones, return Canceled.
// A second Close returns [grpc.ErrClientConnClosing].
//
// A caller whose own goroutine runs the handler, see [InlineHandlers], returns
// Canceled when the handler does, whose context Close cancels. So do not wait for
// such a caller before you release what its handler waits for: use
// [WorkerHandlers], or a context that can be cancelled, or a handler that watches
// its context.
func (c *ClientConn) Close() error {
	switch {
	case c == nil:
		return errNilConn
	case c.remote != nil:
		return c.remote.Close()
	}
	err := c.shut()
	c.grpcMu.Lock()
	c.closed = true
	shown := c.grpc
	c.grpcMu.Unlock()
	if shown != nil {
		_ = shown.Close() // which calls shut again
	}
	return err
}

// shut ends the connection, but for what GRPC has returned.
func (c *ClientConn) shut() error {
	err := c.conn.Close()
	c.client.Close(connector.ErrClosing)
	return err
}

// Target returns the target as it was passed to [NewClient].
func (c *ClientConn) Target() string { return c.target }

// Connect leaves the idle state without a call.
func (c *ClientConn) Connect() {
	if c.remote != nil {
		c.remote.Connect()
		return
	}
	c.conn.Connect()
}

// ResetConnectBackoff has an attempt to connect made at once.
func (c *ClientConn) ResetConnectBackoff() {
	if c.remote != nil {
		c.remote.ResetConnectBackoff()
		return
	}
	c.conn.ResetBackoff()
}

// GetState returns the state of the connection.
func (c *ClientConn) GetState() connectivity.State {
	if c.remote != nil {
		return c.remote.GetState()
	}
	return c.conn.State()
}

// WaitForStateChange waits until the state is not s. It returns false when ctx
// is done before.
func (c *ClientConn) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	if c.remote != nil {
		return c.remote.WaitForStateChange(ctx, s)
	}
	return c.conn.WaitForStateChange(ctx, s)
}
