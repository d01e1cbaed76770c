package nearcall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/balance"
	"github.com/nearcall/nearcall/internal/call"
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
	client *call.Client        // nil if remote makes the calls
	idle   *connector.Idleness // counts the calls; may be nil
	state  state               // of conn or remote

	conn *connector.Connector // for nearcall's own targets; otherwise nil

	// For other targets.
	remote  *grpc.ClientConn
	channel *balance.Channel // nil if remote makes the calls
	hint    string           // appended to Unavailable errors

	grpcMu sync.Mutex
	grpc   *grpc.ClientConn // the result of GRPC; nil before the first use
	closed bool
}

// A state is what a ClientConn shows of its state, and how a user changes it.
type state interface {
	Connect()
	ResetConnectBackoff()
	GetState() connectivity.State
	WaitForStateChange(context.Context, connectivity.State) bool
}

func init() {
	call.ClientSession = func(conn grpc.ClientConnInterface) link.Session {
		if cc, ok := conn.(*ClientConn); ok && cc.conn != nil {
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
		c, _ := newClientConn(target, target, connector.Config{Name: target, Dialer: o.SessionDialer, Backoff: targets.NearBackoff}, o)
		return c, nil // with an invalid option, its calls fail
	}
	t, err := targets.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	if t.IsGRPC() {
		if !t.Insists && !o.WholeToGRPC {
			return newBalanced(target, o)
		}
		if err := checkRemote(o); err != nil {
			return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
		}
		remote, err := grpc.NewClient(t.Rest, o.ToGRPC...)
		if err != nil {
			return nil, named(err)
		}
		if !t.Insists {
			logger.Infof("calls to %q go to grpc-go, over HTTP/2, because of WithGRPCDialOptions", target)
		}
		return &ClientConn{opts: o, target: target, remote: remote, state: remote, hint: targets.Hint(t.Rest, o)}, nil
	}
	cfg := connector.Config{Name: target, Backoff: t.Scheme.Backoff}
	if t.Scheme.Sockets {
		cfg.Idle = idleness(o)
	}
	var authority string
	if cfg.Dialer, authority, err = t.Dialer(o, caller(o, cfg.Idle)); err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	c, err := newClientConn(target, authority, cfg, o)
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	c.persist()
	return c, nil
}

// idleness returns what detects that a connection with these options is idle.
func idleness(o *options.Client) *connector.Idleness { return connector.NewIdleness(o.IdleAfter) }

// caller returns what dialers need to know besides the options. idle counts the peer's calls.
func caller(o *options.Client, idle *connector.Idleness) targets.Caller {
	return targets.Caller{Accept: acceptPeer(o, idle), Unix: unixAuthInfo}
}

// persist makes the connection stay connected if the options say so.
func (c *ClientConn) persist() {
	if c.opts.Persistent {
		c.conn.Persist()
	}
}

var logger = grpclog.Component("nearcall")

const userAgent = "nearcall/" + Version

// newClientConn returns a connection to target. It connects as the parameter how says, except
// where an option in o says otherwise. If an option is invalid, newClientConn returns its error, and
// a connection whose calls fail with it.
func newClientConn(target, authority string, how connector.Config, o *options.Client) (_ *ClientConn, err error) {
	var service *call.ServiceConfig
	if o.ConfigJSON != nil {
		if service, err = call.ConfigOf(o, *o.ConfigJSON); err != nil {
			how.Dialer = connector.Failing{Err: err}
		}
	}
	if o.ConnectBackoff != nil {
		how.Backoff = *o.ConnectBackoff
	}
	how.Options = o
	c := &ClientConn{opts: o, target: target, idle: how.Idle}
	how.OnSession = func(s link.Session) { c.client.BeginSession(s) }
	c.conn = connector.New(how)
	c.state = c.conn
	c.client = c.newClient(call.ClientConfig{Sessions: c.conn, Service: service}, authority)
	return c, err
}

// newClient returns the client that makes c's calls. authority is the target's.
func (c *ClientConn) newClient(cfg call.ClientConfig, authority string) *call.Client {
	cfg.GRPC = c.GRPC
	cfg.Authority = c.opts.AuthorityOr(authority)
	cfg.UserAgent = userAgent
	if agent := c.opts.AgentPrefix; agent != "" {
		cfg.UserAgent = agent + " " + userAgent
	}
	return call.NewClient(c.opts, cfg)
}

var errNilConn = status.Error(codes.Internal, "nearcall: the ClientConn is nil; check the error of NewClient")

// Invoke makes a unary call. Generated code calls it. Every error is a status error,
// except other errors of interceptors.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c == nil {
		return errNilConn
	}
	c.idle.Begin()
	defer c.idle.End()
	return c.hinted(opts, func(opts []grpc.CallOption) error {
		if c.client == nil {
			return c.remote.Invoke(ctx, method, forGRPC(args), reply, opts...)
		}
		return c.client.Invoke(ctx, method, args, reply, opts...)
	})
}

// NewStream starts a stream. Generated code calls it. To release the stream's resources, do one of
// the things that [grpc.ClientConn.NewStream] lists: close the connection, cancel ctx, call
// RecvMsg until it returns an error, or get an error other than io.EOF from SendMsg.
func (c *ClientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if c == nil {
		return nil, errNilConn
	}
	s, err := c.idle.Stream(opts, func(opts []grpc.CallOption) (grpc.ClientStream, error) {
		if c.client != nil {
			return c.client.NewStream(ctx, desc, method, opts...)
		}
		s, err := c.remote.NewStream(ctx, desc, method, opts...)
		if err != nil {
			return nil, err
		}
		return remoteStream{s}, nil
	})
	return s, withHint(err, c.hint)
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
	switch {
	case c == nil:
		return errNilConn
	case c.channel != nil:
		err := c.channel.Close()
		c.client.Close(connector.ErrClosing)
		return err
	case c.remote != nil:
		return c.remote.Close()
	}
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
func (c *ClientConn) shut() error {
	err := c.conn.Close()
	if reason := c.conn.Closed; reason != nil {
		// c is a connection that PeerConn has returned. Its calls end with the peer's session, and
		// still receive what has arrived before that.
		c.client.Refuse(reason)
	} else {
		c.client.Close(connector.ErrClosing)
	}
	return err
}

// Target returns the target that was passed to [NewClient], and "inproc:" for
// connections of [Server.Client].
func (c *ClientConn) Target() string { return c.target }

// Connect starts connecting if the connection is idle. It does not wait.
func (c *ClientConn) Connect() { c.state.Connect() }

// ResetConnectBackoff ends the current backoff, so that the next attempt to connect
// starts at once and the backoff begins anew.
func (c *ClientConn) ResetConnectBackoff() { c.state.ResetConnectBackoff() }

// GetState returns the current state of the connection.
func (c *ClientConn) GetState() connectivity.State { return c.state.GetState() }

// WaitForStateChange waits until the state differs from s. It returns false if ctx is done first.
func (c *ClientConn) WaitForStateChange(ctx context.Context, s connectivity.State) bool {
	return c.state.WaitForStateChange(ctx, s)
}

// hinted makes a unary call, and appends c's hint to its error if the call has not reached a
// server.
func (c *ClientConn) hinted(opts []grpc.CallOption, invoke func(opts []grpc.CallOption) error) error {
	if c.hint == "" {
		return invoke(opts)
	}
	var server peer.Peer
	err := invoke(append(slices.Clip(opts), grpc.Peer(&server)))
	if server.Addr != nil {
		return err
	}
	return withHint(err, c.hint)
}

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
