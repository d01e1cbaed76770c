// Package grpcgo carries calls through grpc-go: to ordinary gRPC servers over a connection of
// grpc-go, and from a *grpc.Server to an acceptor. Messages pass grpc-go in encoded form.
package grpcgo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/internal/link"
)

// A Dialer implements [link.Dialer].
type Dialer struct {
	Target  string // for grpc.NewClient
	Options []grpc.DialOption
	Creds   credentials.TransportCredentials // secure the connection; nil for none
}

// Dial implements [link.Dialer]. It returns once the connection is ready.
func (d Dialer) Dial(ctx context.Context) (link.Session, error) {
	record := &recorder{TransportCredentials: d.Creds}
	if d.Creds == nil {
		record.TransportCredentials = insecure.NewCredentials()
	}
	conn, err := open(ctx, d.Target, "", record, d.Options)
	if err != nil {
		return nil, fmt.Errorf("%s: grpc-go cannot connect: %w", d.Target, err)
	}
	return sessionOf(conn, "", record.peer()), nil
}

// Over returns a session whose calls grpc-go makes over conn, which it closes if it fails. An
// ordinary gRPC server listens at the other end, and name is its target. creds have secured conn,
// with the result auth; nil for none.
func Over(ctx context.Context, conn net.Conn, auth credentials.AuthInfo, creds credentials.TransportCredentials, name, authority string, opts []grpc.DialOption) (link.Session, error) {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	var taken atomic.Bool
	dial := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errLeft
		}
		return conn, nil
	})
	peer := link.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: auth}
	over, err := open(ctx, "passthrough:///"+name, authority, secured{creds, auth}, append(opts[:len(opts):len(opts)], dial))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("an ordinary gRPC server listens there, and grpc-go cannot connect to it: %w", err)
	}
	return sessionOf(over, authority, peer), nil
}

// open returns a connection of grpc-go once it is ready.
func open(ctx context.Context, target, authority string, creds credentials.TransportCredentials, opts []grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithAuthority(authority),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	}, opts...)...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		switch {
		case s == connectivity.TransientFailure:
			err = errNotReady
		case !conn.WaitForStateChange(ctx, s):
			err = ctx.Err()
		}
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

var errNotReady = errors.New("the connection has failed")

// secured are the credentials of a connection that has been secured, with the result auth.
// It implements [credentials.TransportCredentials].
type secured struct {
	credentials.TransportCredentials
	auth credentials.AuthInfo
}

func (s secured) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, s.auth, nil
}

func (s secured) Clone() credentials.TransportCredentials { return s }

// A recorder is the credentials of a connection, and records the result of the handshake.
// It implements [credentials.TransportCredentials].
type recorder struct {
	credentials.TransportCredentials

	mu   sync.Mutex
	last link.Peer
}

func (r *recorder) peer() link.Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *recorder) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := r.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err == nil {
		r.mu.Lock()
		r.last = link.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: auth}
		r.mu.Unlock()
	}
	return conn, auth, err
}

func (r *recorder) Clone() credentials.TransportCredentials { return r }
