//lint:file-ignore SA1019 grpc-go's tests use what is deprecated.

package grpc

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// EnableTracing exists in grpc-go. Here it does nothing.
var EnableTracing bool

// A conn is a client of grpc-go or of nearcall.
type conn interface {
	g.ClientConnInterface
	Close() error
	Connect()
	ResetConnectBackoff()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
}

// A ClientConn is a client of grpc-go or of nearcall. A client of nearcall has one address.
// If a test uses a resolver, resolved.go makes a new client of nearcall for each new result
// of the resolver.
type ClientConn struct {
	target  string
	opts    []nearcall.DialOption
	secure  bool             // the options have credentials that secure connections
	builder resolver.Builder // nil if conn is the only one
	ready   chan struct{}    // closed when conn is set or c is closed

	mu        sync.Mutex
	conn      conn   // nil if there is none yet
	replaced  []conn // for previous results of the resolver
	resolver  resolver.Resolver
	started   bool   // resolver was built, or is being built
	connected bool   // Connect or a call has asked for a connection
	closed    bool   // Close was called
	addr      string // the address of conn
	config    string // the service config of conn, as JSON
}

// NewClient returns a client of the kind near.On.
func NewClient(target string, opts ...DialOption) (*ClientConn, error) {
	o := mergeClient(opts)
	cc := &ClientConn{target: target, ready: make(chan struct{})}
	if near.On.ClientOfGRPC() {
		n, err := g.NewClient(target, o.grpc...)
		return cc.with(n, err)
	}
	if o.missing != "" {
		near.Unsupported("dial option " + o.missing)
	}
	switch near.On {
	case near.Unix:
		o.near = append(o.near, nearcall.WithDisableSharedMemory())
	case near.Shared:
		o.near = append(o.near, nearcall.WithImmutableMessages())
	}
	cc.opts = o.near
	if n := len(o.secure); n > 0 {
		cc.secure = o.secure[n-1]
	}
	if !near.On.OwnTargets() {
		if cc.builder = builder(target, o.resolvers); cc.builder != nil {
			return cc, cc.check()
		}
		target = translate(target, cc.secure)
	}
	n, err := nearcall.NewClient(target, o.near...)
	return cc.with(n, err)
}

// with returns c with its only conn, unless making that has failed with err.
func (c *ClientConn) with(n conn, err error) (*ClientConn, error) {
	if err != nil {
		return nil, err
	}
	c.conn = n
	close(c.ready)
	return c, nil
}

// clientOf returns the ClientConn that an interceptor gets instead of cc.
func clientOf(cc *g.ClientConn) *ClientConn {
	if cc == nil {
		return &ClientConn{}
	}
	return &ClientConn{conn: cc, target: cc.Target()}
}

// check returns the error that nearcall.NewClient returns for the options of c.
func (c *ClientConn) check() error {
	probe, err := nearcall.NewClient(near.Target("localhost:1", c.secure), c.opts...)
	if err != nil {
		return err
	}
	return probe.Close()
}

// addresses are the schemes whose targets are a single address.
var addresses = map[string]bool{"passthrough": true, "dns": true, "unix": true, "unix-abstract": true}

// builder returns the resolver builder for the scheme of target.
func builder(target string, known []resolver.Builder) resolver.Builder {
	u, err := url.Parse(target)
	if err != nil || u.Scheme == "" || addresses[u.Scheme] {
		return nil
	}
	for _, b := range known {
		if b.Scheme() == u.Scheme {
			return b
		}
	}
	return resolver.Get(u.Scheme)
}

// translate converts a target of grpc-go to one of nearcall.
func translate(target string, secure bool) string {
	addr := target
	if u, err := url.Parse(target); err == nil && addresses[u.Scheme] {
		switch u.Scheme {
		case "unix":
			return translateUnix(target)
		case "unix-abstract":
			return target
		}
		if addr = strings.TrimPrefix(u.Path, "/"); addr == "" {
			addr = u.Opaque
		}
	}
	if strings.HasPrefix(addr, "unix:") {
		return translateUnix(addr)
	}
	if strings.HasPrefix(addr, "/") {
		return translateUnix("unix:" + addr)
	}
	return near.Target(addr, secure)
}

func translateUnix(target string) string {
	switch {
	case near.On.InOneProcess():
		near.Unsupported("a unix socket in process: " + target)
	case near.On == near.SharedMem:
		return "shm:" + strings.TrimPrefix(strings.TrimPrefix(target, "unix:"), "//")
	}
	return target
}

// Dial is NewClient.
func Dial(target string, opts ...DialOption) (*ClientConn, error) { return NewClient(target, opts...) }

// DialContext is NewClient.
func DialContext(_ context.Context, target string, opts ...DialOption) (*ClientConn, error) {
	return NewClient(target, opts...)
}

// Invoke is cc.Invoke.
func Invoke(ctx context.Context, method string, args, reply any, cc *ClientConn, opts ...g.CallOption) error {
	return cc.Invoke(ctx, method, args, reply, opts...)
}

// NewClientStream is cc.NewStream.
func NewClientStream(ctx context.Context, desc *g.StreamDesc, cc *ClientConn, method string, opts ...g.CallOption) (g.ClientStream, error) {
	return cc.NewStream(ctx, desc, method, opts...)
}

// Invoke makes a unary call.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...g.CallOption) error {
	n, err := c.wait(ctx)
	if err != nil {
		return err
	}
	return n.Invoke(ctx, method, args, reply, opts...)
}

// NewStream begins a stream.
func (c *ClientConn) NewStream(ctx context.Context, desc *g.StreamDesc, method string, opts ...g.CallOption) (g.ClientStream, error) {
	n, err := c.wait(ctx)
	if err != nil {
		return nil, err
	}
	return n.NewStream(ctx, desc, method, opts...)
}

// wait waits for the conn and returns it.
func (c *ClientConn) wait(ctx context.Context) (conn, error) {
	c.resolve(true)
	if n := c.current(); n != nil {
		return n, nil
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if n := c.current(); n != nil {
		return n, nil
	}
	return nil, g.ErrClientConnClosing
}

// current returns the conn, or nil if there is none yet.
func (c *ClientConn) current() conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// Close closes the client and those that it replaced.
func (c *ClientConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return g.ErrClientConnClosing
	}
	c.closed = true
	n, replaced, r := c.conn, c.replaced, c.resolver
	if n == nil {
		close(c.ready)
	}
	c.mu.Unlock()
	if r != nil {
		r.Close()
	}
	for _, old := range replaced {
		_ = old.Close()
	}
	if n == nil {
		return nil
	}
	return n.Close()
}

// Connect makes the client connect.
func (c *ClientConn) Connect() {
	c.resolve(true)
	if n := c.current(); n != nil {
		n.Connect()
	}
}

// ResetConnectBackoff resets the connection's backoff.
func (c *ClientConn) ResetConnectBackoff() {
	if n := c.current(); n != nil {
		n.ResetConnectBackoff()
	}
}

// GetState returns the state of the connection.
func (c *ClientConn) GetState() connectivity.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.conn != nil:
		return c.conn.GetState()
	case c.closed:
		return connectivity.Shutdown
	case c.started:
		return connectivity.Connecting
	}
	return connectivity.Idle
}

// WaitForStateChange waits until the state differs from s. It polls until there is a client.
func (c *ClientConn) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	for {
		if n := c.current(); n != nil {
			return n.WaitForStateChange(ctx, s)
		}
		if c.GetState() != s {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Target returns the target passed to NewClient.
func (c *ClientConn) Target() string { return c.target }

// CanonicalTarget returns the canonical target of the client, or "" if there is none yet.
func (c *ClientConn) CanonicalTarget() string {
	if cc := c.real(); cc != nil {
		return cc.CanonicalTarget()
	}
	return ""
}

// GetMethodConfig returns the method config of the client, or an empty one if there is no
// client yet.
func (c *ClientConn) GetMethodConfig(method string) g.MethodConfig {
	if cc := c.real(); cc != nil {
		return cc.GetMethodConfig(method)
	}
	return g.MethodConfig{}
}

// real returns the *grpc.ClientConn of c, or nil if there is none yet.
func (c *ClientConn) real() *g.ClientConn {
	switch n := c.current().(type) {
	case *g.ClientConn:
		return n
	case *nearcall.ClientConn:
		return n.GRPC()
	}
	return nil
}
