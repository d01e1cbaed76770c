// Package grpcgo carries calls through grpc-go: to ordinary gRPC servers over a connection of
// grpc-go, and from a *grpc.Server to an acceptor. Messages pass grpc-go in encoded form.
package grpcgo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nearcall/nearcall/internal/link"
)

// A Dialer implements [link.Dialer].
type Dialer struct {
	// If First is not nil, Dial tries it before grpc-go. If IsGRPC reports true for First's error,
	// an ordinary gRPC server listens there, and Dial connects through grpc-go.
	First  link.Dialer
	IsGRPC func(error) bool

	Target    string // for grpc.NewClient
	Authority string
	Options   []grpc.DialOption

	// Creds secure the connection; nil for none. Auth returns the AuthInfo of a
	// connection without credentials.
	Creds credentials.TransportCredentials
	Auth  func(net.Conn) credentials.AuthInfo
}

var (
	errNotReady = errors.New("grpc-go cannot connect")
	errRefused  = errors.New("an ordinary gRPC server listens there, and grpc-go cannot connect to it")
)

// Dial implements [link.Dialer]. It returns once the connection is ready.
func (d Dialer) Dial(ctx context.Context) (link.Session, error) {
	if d.First != nil {
		s, err := d.First.Dial(ctx)
		if err == nil || !d.IsGRPC(err) {
			return s, err
		}
	}
	record := &recorder{TransportCredentials: d.Creds, plain: d.Auth, shared: new(recorded)}
	if d.Creds == nil {
		record.TransportCredentials = insecure.NewCredentials()
	} else {
		record.plain = nil
	}
	conn, err := grpc.NewClient(d.Target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(record), grpc.WithAuthority(d.Authority),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	}, d.Options...)...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		switch {
		case s == connectivity.TransientFailure && d.First != nil:
			err = errRefused
		case s == connectivity.TransientFailure:
			err = errNotReady
		case !conn.WaitForStateChange(ctx, s):
			err = ctx.Err()
		}
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: %w", d.Target, err)
		}
	}
	return sessionOf(conn, d.Authority, record.shared.peer()), nil
}

// A recorder is the credentials of a connection, and records the result of the handshake.
type recorder struct {
	credentials.TransportCredentials
	plain  func(net.Conn) credentials.AuthInfo // replaces the AuthInfo; may be nil
	shared *recorded
}

type recorded struct {
	mu   sync.Mutex
	last link.Peer
}

func (r *recorded) peer() link.Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r *recorder) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := r.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err == nil && r.plain != nil {
		auth = r.plain(raw)
	}
	if err == nil {
		r.shared.mu.Lock()
		r.shared.last = link.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: auth}
		r.shared.mu.Unlock()
	}
	return conn, auth, err
}

// Clone implements [credentials.TransportCredentials].
func (r *recorder) Clone() credentials.TransportCredentials {
	return &recorder{r.TransportCredentials.Clone(), r.plain, r.shared}
}
