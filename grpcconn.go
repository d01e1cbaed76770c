package nearcall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/grpcinside"
)

// GRPC returns a *grpc.ClientConn that stands for c, for APIs that require the concrete
// type. Interceptors of c get the same one.
//
// Its calls run over c, with c's interceptors, stats handlers and default call options. Its state
// is always c's, Connect and ResetConnectBackoff act on c, Target returns c's target, and
// GetMethodConfig returns the config of [WithDefaultServiceConfig]. Closing one of the two closes
// both.
//
// GRPC creates it on first use and returns the same one afterwards. It costs four
// goroutines until it is closed; its calls cost as much as c's. For targets that go to
// grpc-go it is the connection that makes c's calls.
func (c *ClientConn) GRPC() *grpc.ClientConn {
	return c.conn.GRPC()
}

// DialOptions returns options for a library that calls grpc.NewClient or grpc.Dial itself and takes
// a []grpc.DialOption. The library's *grpc.ClientConn passes its calls to c and makes no
// connection. c uses its own target, dialer and credentials. Pass the options after all
// others: the library's interceptors then run before c's.
//
// Apart from interceptors, only call options of the library affect the calls, such as those of
// [grpc.WithDefaultCallOptions]. Give c the per-RPC credentials, the stats handlers and the service
// config that the calls need.
//
// If the library's target has no scheme, or one of dns, passthrough, unix and unix-abstract,
// Connect connects c, and the state is c's. No call waits for the state. As with all connections of
// grpc.NewClient, the state is Idle until Connect is called.
//
// The options can be used more than once. When the library closes its *grpc.ClientConn, the calls
// through it end with Canceled, as in grpc-go, and c stays open. Close c when the library no longer
// needs it. A *grpc.ClientConn that has made a call costs a goroutine until it is closed.
func (c *ClientConn) DialOptions() []grpc.DialOption {
	l := &libraries{conn: c.conn, lives: make(map[*grpc.ClientConn]context.Context)}
	// With WithUnaryInterceptor, l would run before the interceptors of a library, and skip them.
	calls := []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.invoke), grpc.WithChainStreamInterceptor(l.newStream)}
	return append(calls, c.shown(nil).Options("dns", "unix", "unix-abstract")...)
}

// newGRPC returns a connection of grpc-go that stands for c, and whose Close calls shut.
func (c *ClientConn) newGRPC(shut func() error) *grpc.ClientConn {
	unary := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return c.Invoke(ctx, method, req, reply, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.NewStream(ctx, desc, method, opts...)
	}
	return c.shown(shut).Dial(grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
}

// shown returns c for connections of grpc-go that stand for it. shut is called when one was closed; it
// may be nil.
func (c *ClientConn) shown(shut func() error) *grpcinside.Shown {
	return &grpcinside.Shown{Target: c.target, ServiceConfig: c.opts.ConfigText(), MaxAttempts: c.opts.MaxCallAttempts, Conn: c.conn, Shut: shut}
}
