package nearcall

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/connector"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/targets"
)

// WithServer makes s serve calls from the server to this client, over the same
// connection: handlers of the server make such calls with [PeerConn]. The client needs
// no listener, so this works behind NAT.
//
// Calls of both directions share only the connection's window. Services, interceptors,
// limits and [MaxConcurrentStreams] are those of s. Several clients can share s, and s can serve
// listeners as well. [Server.Stop], [Server.GracefulStop] and [Server.Shutdown] of s end the calls
// from the server, but close no client's connection. When a connection is closed, the server's
// calls over it are cancelled.
//
// The server can call the client while the connection exists. A client that makes no calls itself
// needs [WithPersistentConnection]. Without it a connection is made only for the first call, and
// is closed after [WithIdleTimeout] without calls in either direction.
//
// NewClient returns an error if the target goes to grpc-go as a whole, as grpc:TARGET does: its
// servers make no calls.
func WithServer(s *Server) DialOption {
	return options.SetClient(func(o *options.Client) {
		if s != nil {
			o.SetPeerServer(s.core, s.opts)
		}
	})
}

// WithPersistentConnection makes the client connect at once, and again whenever the connection is
// lost, without waiting for a call. It turns [WithIdleTimeout] off. It is for clients that only
// serve: see [WithServer]. NewClient returns an error if the target goes to grpc-go as a whole, as
// grpc:TARGET does.
func WithPersistentConnection() DialOption {
	return options.SetClient(func(o *options.Client) { o.Persistent = true })
}

// PeerConnOptions sets the options of the connections that [PeerConn] returns in handlers
// of this server: interceptors, stats handlers, call options, a service config,
// [WithImmutableMessages], [WithUserAgent], [WithAuthority]. Options about connecting and the
// network have no effect; an invalid [WithDefaultServiceConfig] makes calls fail with
// Unavailable. Calls have the authority localhost by default.
func PeerConnOptions(opts ...DialOption) ServerOption {
	return options.SetServer(func(o *options.Server) { o.PeerOptions = append(o.PeerOptions, opts...) })
}

// PeerConn returns a connection for calls to the peer. In a server's handler the peer is the
// client that made the call, which needs [WithServer]; in a handler of such a client it is the
// server. ctx is the handler's context, or one derived from it. PeerConn uses ctx only to identify
// the peer. Pass it to the calls as well if they should end with the handler's call.
//
// The result is never nil. It can be used by several goroutines, and after the handler has
// returned, until the connection ends. After that its calls fail with Unavailable, even with
// WaitForReady, because it does not reconnect. If the peer takes no calls (a client without a
// server, or an ordinary gRPC client), they fail with Unimplemented.
//
// A handler that waits for its call to the peer counts as a running call on both sides:
// calls that nest n deep need a [MaxConcurrentStreams] of at least n/2 on each side.
func PeerConn(ctx context.Context) grpc.ClientConnInterface {
	if c := server.PeerConn(ctx); c != nil {
		return c
	}
	return noPeer{}
}

// noPeer is the connection to a peer that is not nearcall's.
type noPeer struct{}

var errNoPeer = status.Error(codes.Unimplemented, "nearcall: PeerConn has no peer to call: its context is not that of a handler, or the handler's call comes from an ordinary gRPC client, which takes no calls")

func (noPeer) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return errNoPeer }

func (noPeer) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNoPeer
}

var errPeerLeft = errors.New("nearcall: the peer's connection has ended, or takes no more calls")

// peerConn returns a connection that makes calls over session until the session ends.
func (s *Server) peerConn(session link.Session) grpc.ClientConnInterface {
	o := options.NewClient(s.opts.PeerOptions)
	d := &peerDialer{session: peerSession{session}}
	how := connector.Config{Dialer: d, Backoff: targets.NearBackoff, Closed: status.Error(codes.Unavailable, errPeerLeft.Error())}
	target := "peer:"
	if a := session.Peer().Addr; a != nil {
		target += a.String()
	}
	d.conn, _ = newOneServer(target, "localhost", how, o) // with an error, its calls fail
	return d.conn.of
}

// A peerDialer dials a session that exists.
type peerDialer struct {
	session peerSession
	conn    *oneServer
}

// Dial implements [link.Dialer].
func (d *peerDialer) Dial(context.Context) (link.Session, error) {
	if link.IsClosed(d.session.Done()) {
		_ = d.conn.Connector.Close() // the session will not take calls again
		return nil, errPeerLeft
	}
	return d.session, nil
}

// A peerSession is a session that lasts as long as its connection: closing a ClientConn does not
// end it. It implements [link.Session].
type peerSession struct{ link.Session }

func (peerSession) Retire() {}

func (peerSession) Close(error) error { return nil }

// acceptPeer returns the function by which the server of WithServer accepts the peer's calls, nil
// without a server. idle counts them; it may be nil.
func acceptPeer(o *options.Client, idle *connector.Idleness) func(link.Session) link.Acceptor {
	if o.PeerServer == nil {
		return nil
	}
	return func(session link.Session) link.Acceptor { return o.PeerServer.AcceptClient(session, idle) }
}

// checkWhole returns an error if the options do not fit a target that goes to grpc-go as a whole.
func checkWhole(o *options.Client) error {
	name := ""
	switch {
	case o.PeerServer != nil:
		name = "WithServer"
	case o.Persistent:
		name = "WithPersistentConnection"
	default:
		return nil
	}
	return fmt.Errorf("%s needs a target of nearcall's own, such as tcp:HOST:PORT or unix:PATH: this one goes to grpc-go; leave the option out", name)
}
