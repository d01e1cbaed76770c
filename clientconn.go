package nearcall

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/call/client"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// A ClientConn makes calls to one target. It implements [grpc.ClientConnInterface], so generated
// NewXClient functions accept it. Create one with [NewClient] or [Server.Client], and close it when
// it is no longer needed. All methods are safe for concurrent use.
type ClientConn struct {
	opts   *options.Client
	target string
	conn   connection
}

// A connection is what a ClientConn makes calls with. There is one for each way to reach a target:
//
//   - a oneServer, to one server over a path of nearcall's own, in process or over a connection
//   - a resolved, to the servers that grpc-go finds and chooses, each over its nearest path
//   - a whole, which grpc-go makes calls with, and all else
//
// Its methods are those of ClientConn with the same names, and safe for concurrent use.
type connection interface {
	grpc.ClientConnInterface
	Connect()
	ResetConnectBackoff()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
	GRPC() *grpc.ClientConn
	Close() error

	// Observe calls f with the current state and with each later one, until stop is called. f must
	// not call the connection.
	Observe(f func(connectivity.State)) (stop func())

	// Current returns the session that all calls use now, or nil if there is none.
	Current() link.Session
}

func init() {
	call.ClientSession = func(conn grpc.ClientConnInterface) link.Session {
		if cc, ok := conn.(*ClientConn); ok {
			return cc.conn.Current()
		}
		return nil
	}
}

// NewClient returns a connection to target. It does not connect: the first call or
// [ClientConn.Connect] does. A connection that is lost or cannot be made is retried
// with exponential backoff: see [WithConnectParams].
//
// These targets are nearcall's own, and a [Server] listens on them:
//
//   - inproc:NAME is the server of this process that listens on NAME.
//   - unix:PATH or unix:///PATH is a unix socket. On Linux the connection becomes shared memory if
//     the server agrees: see [WithMaxSharedMemory](0). PATH is used as it stands; percent-encoding
//     is not decoded. A relative PATH is resolved against the working directory when NewClient is
//     called. If the absolute path is too long for a socket (the limit on Linux is 107 bytes), PATH
//     is instead resolved each time a connection is made. While the server's accept queue is full,
//     connecting waits, as over TCP.
//   - shm:PATH or shm:///PATH is shared memory, set up over the unix socket at PATH.
//     Calls fail with Unavailable if the server does not agree. Linux only.
//   - unix-abstract:NAME is an abstract unix socket. Linux only.
//   - tcp:HOST:PORT is TCP, secured by [WithTransportCredentials]. Without credentials HOST must be
//     localhost or a literal loopback address, or NewClient returns an error. Proxies are not used.
//   - ws://HOST:PORT/PATH is a WebSocket without TLS. As with tcp:, any other HOST than localhost
//     and literal loopback addresses needs credentials; a ws: target accepts only insecure ones.
//     wss://HOST:PORT/PATH is a WebSocket over TLS. Without credentials the client trusts
//     the system's root certificates, as for HTTPS; [NewTLS] makes credentials for other
//     certificates. The default ports are 80 and 443.
//   - quic:HOST:PORT is QUIC, over UDP. The program must import
//     github.com/nearcall/nearcall/quic, and the client needs credentials of [NewTLS].
//
// Every other target that [grpc.NewClient] takes can have several servers: HOST:PORT,
// dns:///NAME:PORT, xds:///NAME, and those of registered resolvers and of [WithResolvers]. grpc-go
// resolves it, and its balancers pick a server for each call. A server of nearcall's is called over
// the nearest path: in process, over shared memory, or with nearcall's protocol over TCP. An
// ordinary gRPC server is called by grpc-go. As in grpc-go, such a target needs credentials, be
// they insecure ones. An address that a resolver returns may be a target of nearcall's own. The
// page docs/targets.md of this project says more.
//
// grpc:TARGET goes to grpc-go as a whole, together with the options that grpc-go has as well. An
// ordinary gRPC server at a unix socket is grpc:unix:PATH. Schemes are case-insensitive, as in
// gRPC.
//
// NewClient returns an error if the target is malformed or not supported on this system,
// or if an option is invalid or contradicts another.
func NewClient(target string, opts ...DialOption) (*ClientConn, error) {
	o := options.NewClient(opts)
	if o.SessionDialer != nil {
		c, _ := newOneServer(target, target, connector.Config{Name: target, Dialer: o.SessionDialer, Backoff: targets.NearBackoff}, o)
		return c.of, nil // with an invalid option, its calls fail
	}
	t, err := targets.Parse(target)
	switch {
	case err != nil:
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	case t.IsGRPC() && (t.Insists || o.WholeToGRPC):
		return newWhole(target, t, o)
	case t.IsGRPC():
		return newResolved(target, o)
	}
	return dialOneServer(target, t, o)
}

// idleness returns what detects that a connection with these options is idle.
func idleness(o *options.Client) *connector.Idleness { return connector.NewIdleness(o.IdleAfter) }

// caller returns what dialers need to know besides the options. idle counts the peer's calls.
func caller(o *options.Client, idle *connector.Idleness) targets.Caller {
	return targets.Caller{Accept: acceptPeer(o, idle), Unix: unixAuthInfo}
}

var logger = grpclog.Component("nearcall")

const userAgent = "nearcall/" + Version

// newClient returns a client that makes calls with cfg. grpc is GRPC of its connection, and authority
// the target's.
func newClient(o *options.Client, cfg client.Config, grpc func() *grpc.ClientConn, authority string) *client.Client {
	cfg.GRPC = grpc
	cfg.Authority = o.AuthorityOr(authority)
	cfg.UserAgent = userAgent
	if agent := o.AgentPrefix; agent != "" {
		cfg.UserAgent = agent + " " + userAgent
	}
	return client.New(o, cfg)
}

var errNilConn = status.Error(codes.Internal, "nearcall: the ClientConn is nil; check the error of NewClient")

// Invoke makes a unary call. Generated code calls it. Every error is a status error,
// except other errors of interceptors.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c == nil {
		return errNilConn
	}
	return c.conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream starts a stream. Generated code calls it. To release the stream's resources, do one of
// the things that [grpc.ClientConn.NewStream] lists: close the connection, cancel ctx, call
// RecvMsg until it returns an error, or get an error other than io.EOF from SendMsg.
func (c *ClientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if c == nil {
		return nil, errNilConn
	}
	return c.conn.NewStream(ctx, desc, method, opts...)
}

// Close closes the connection. Pending and later calls return Canceled. A second Close
// returns [grpc.ErrClientConnClosing].
//
// Close cancels the contexts of handlers. It cannot release a caller whose own goroutine runs the
// handler, see [Inline]: that caller returns Canceled when the handler returns. A program that
// waits for such a caller after Close, and only then releases what the handler waits for,
// deadlocks. To prevent that, use [Workers], make calls with a context that can be cancelled, or
// let the handler watch its context.
func (c *ClientConn) Close() error {
	if c == nil {
		return errNilConn
	}
	return c.conn.Close()
}

// Target returns the target that was passed to [NewClient], and "inproc:" for
// connections of [Server.Client].
func (c *ClientConn) Target() string { return c.target }

// Connect starts connecting if the connection is idle. It does not wait.
func (c *ClientConn) Connect() { c.conn.Connect() }

// ResetConnectBackoff ends the current backoff, so that the next attempt to connect
// starts at once and the backoff begins anew.
func (c *ClientConn) ResetConnectBackoff() { c.conn.ResetConnectBackoff() }

// GetState returns the current state of the connection.
func (c *ClientConn) GetState() connectivity.State { return c.conn.GetState() }

// WaitForStateChange waits until the state differs from s. It returns false if ctx is done first.
func (c *ClientConn) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	return c.conn.WaitForStateChange(ctx, s)
}
