// Package sock carries calls over sockets, with gRPC's transport credentials: unix sockets, TCP,
// and whatever else a net.Listener accepts.
package sock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/wire"
)

// Options say how a dialer or a listener makes sessions of its connections.
type Options struct {
	nearpath.Options

	// Unix returns the AuthInfo for the process at the other end of a unix socket. It is used if
	// there are no credentials and the system can tell which process that is. Without credentials,
	// unix sockets count as private, as with gRPC's local credentials, and other connections as not
	// secured.
	Unix func(sockopt.Process) credentials.AuthInfo
}

// Deadline returns the deadline of a client's handshake that begins now.
func (o Options) Deadline() time.Time { return time.Now().Add(o.Config.HandshakeTime) }

// mux returns the options of a session over conn, or over the connection that has replaced it.
// If peer has no addresses or path, conn's are used.
func (o Options) mux(name string, client bool, conn net.Conn, upgraded bool, peer link.Peer) mux.Options {
	if peer.Addr == nil {
		peer.Addr, peer.LocalAddr = conn.RemoteAddr(), conn.LocalAddr()
		if upgraded {
			peer.Addr, peer.LocalAddr = o.Upgrade.AddressOf(peer.Addr), o.Upgrade.AddressOf(peer.LocalAddr)
		}
	}
	if peer.Path == counters.Other && peer.Addr != nil {
		peer.Path = counters.PathOver(peer.Addr.Network())
	}
	return mux.Options{Config: o.Config, Name: name, Client: client, Peer: peer, HelloTime: o.Config.HandshakeTime}
}

// A Dialer implements [link.Dialer].
type Dialer struct {
	Target    string // for errors
	GRPC      string // the target of an ordinary gRPC server at this address, for errors
	Network   string // as for net.Dial
	Address   string
	Authority string                           // that the server's certificate must match
	Creds     credentials.TransportCredentials // nil for none
	Client    *options.Client
	Options   Options // its Config is Client's

	// Accept returns the acceptor of the server's calls, or nil for none. A nil Accept means none,
	// too.
	Accept func(link.Session) link.Acceptor

	// Wrap replaces a secured connection by a connection that carries nearcall's protocol in
	// another protocol; nil for none.
	Wrap func(ctx context.Context, conn net.Conn) (net.Conn, error)

	// If Ordinary is set, Dial asks which protocol the server speaks. Ordinary opens a session
	// over a connection to a server that speaks only gRPC. If it fails, the connection is closed.
	// auth is the result of the security handshake.
	Ordinary func(ctx context.Context, conn net.Conn, auth credentials.AuthInfo) (link.Session, error)

	// If Near is set, a TCP connection to a server of this host is replaced by a nearer path:
	// shared memory, or the session that Near opens if the server is in this process.
	Near nearpath.InProcess
}

// Dial implements [link.Dialer]. It returns once the server has sent its HELLO.
func (d Dialer) Dial(ctx context.Context) (link.Session, error) {
	raw, err := d.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Target, err)
	}
	conn, auth := raw, credentials.AuthInfo(nil)
	if d.Creds == nil {
		auth = d.Options.PlainAuth(conn)
	} else if conn, auth, err = d.Creds.ClientHandshake(ctx, d.Authority, raw); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("%s: authentication handshake failed: %w", d.Target, explain(err))
	}
	if d.Wrap != nil {
		wrapped, err := d.Wrap(ctx, conn)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: %w", d.Target, err)
		}
		conn = wrapped
	}
	if d.Ordinary != nil {
		over, native, err := sniff.Ask(ctx, conn, auth)
		switch {
		case err != nil:
			_ = conn.Close()
			return nil, fmt.Errorf("%s: %w", d.Target, err)
		case !native:
			counters.Stay(sniff.ErrOnlyGRPC)
			s, err := d.Ordinary(ctx, over, auth)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", d.Target, err)
			}
			return s, nil
		}
	}
	return d.Over(ctx, raw, conn, auth)
}

// Over starts a session over conn, whose server speaks nearcall's protocol. raw is the connection
// below the security handshake, conn itself without one, and auth the handshake's result, nil
// without one. Over offers the upgrade or looks for a nearer path, and returns once the server has
// sent its HELLO. If it fails, conn is closed.
func (d Dialer) Over(ctx context.Context, raw, conn net.Conn, auth credentials.AuthInfo) (link.Session, error) {
	if auth == nil && d.Creds == nil {
		auth = d.Options.PlainAuth(conn)
	}
	over, first, upgraded, err := d.Options.Offer(ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", d.Target, d.suggestTarget(err))
	}
	peer := link.Peer{AuthInfo: auth}
	if d.Wrap != nil {
		peer.Path = counters.WebSocket
	}
	o := d.Options.mux(d.Target, true, conn, upgraded, peer)
	o.First = first
	if d.Near != nil && d.Network == "tcp" && d.Wrap == nil && !upgraded {
		c := nearpath.Client{Options: d.Options.Options, Target: d.Target, OwnDialer: d.Client.HasConnDialer(), Accept: d.Accept, InProcess: d.Near}
		nearer, err := c.Move(ctx, nearpath.BareTCP(raw, conn, d.Creds), conn, &o)
		if nearer != nil || err != nil {
			_ = conn.Close()
			return nearer, err
		}
	}
	s, err := mux.Begin(ctx, over, o, d.Accept)
	if err != nil {
		return nil, d.suggestTarget(err)
	}
	return s, nil
}

// suggestTarget adds to err the target that the user can dial instead, if there is one.
func (d Dialer) suggestTarget(err error) error {
	if errors.Is(err, mux.ErrGRPCServer) && d.GRPC != "" {
		return fmt.Errorf("%w; dial %s", err, d.GRPC)
	}
	return err
}

// Connect only opens a connection.
func (d Dialer) Connect(ctx context.Context) (net.Conn, error) {
	if !d.Client.HasConnDialer() {
		return d.connect(ctx)
	}
	conn, err := d.Client.ConnDialer(ctx, d.Address)
	switch {
	case err != nil:
		return nil, err // conn may be a nil *net.UnixConn, which as a net.Conn is not nil
	case conn == nil:
		return nil, errors.New("the dialer returned neither a connection nor an error")
	}
	if u, ok := conn.(*net.UnixConn); ok {
		scmrights.Refuse(u)
	}
	return conn, nil
}

// maxPause is the longest pause between two attempts to connect while the server's queue is full.
const maxPause = 50 * time.Millisecond

// connect does the work of Connect with net.Dialer. If the server's queue of connections is full,
// connecting over TCP waits, but on Linux connecting to a unix socket fails at once. So connect
// tries again until ctx ends.
func (d Dialer) connect(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Control: scmrights.RefuseFrom} // an upgrade accepts its own descriptors
	var full error
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		conn, err := dialer.DialContext(ctx, d.Network, d.Address)
		switch {
		case d.Network == "unix" && errors.Is(err, syscall.EAGAIN):
			full = fmt.Errorf("the server's queue of connections is full: %w", err)
		case full != nil && ctx.Err() != nil:
			return nil, full
		default:
			return conn, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// explain adds an explanation to err if the server has answered TLS with nearcall's line.
func explain(err error) error {
	if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && strings.HasPrefix(wire.Magic, string(header.RecordHeader[:])) {
		return fmt.Errorf("the server speaks nearcall without TLS; dial it without these credentials, or give the server some: %w", err)
	}
	return err
}

// PlainAuth returns the AuthInfo of a connection without credentials.
func (o Options) PlainAuth(conn net.Conn) credentials.AuthInfo {
	if a := conn.LocalAddr(); a == nil || a.Network() != "unix" {
		return link.Insecure
	}
	if o.Unix != nil {
		if p, ok := sockopt.ProcessOf(conn); ok {
			return o.Unix(p)
		}
	}
	return link.Private
}

// accepted does the server's part of the security handshake on conn, if that has not begun.
// before was already read from secured. mixes says that the client may speak several protocols
// over HTTP/2: in TLS it has also offered HTTP/1.1, which clients of gRPC alone do not.
func (o Options) accepted(conn net.Conn) (secured net.Conn, auth credentials.AuthInfo, before []byte, mixes bool, err error) {
	if b, ok := conn.(*sniff.Begun); ok {
		return b.Conn, o.PlainAuth(b.Conn), b.First, false, nil
	}
	if creds := o.Config.ServerCreds; creds != nil {
		secured, auth, mixes, err = handshake(creds, conn)
		return secured, auth, nil, mixes, err
	}
	if c, ok := conn.(*tls.Conn); ok { // from a tls.NewListener
		if err := c.Handshake(); err != nil {
			return nil, nil, nil, false, err
		}
		return c, link.TLSInfo(c.ConnectionState()), nil, false, nil
	}
	return conn, o.PlainAuth(conn), nil, false, nil
}

// acceptedTCP returns the bare TCP connection below one that was accepted, as [nearpath.BareTCP] does.
func (o Options) acceptedTCP(conn, secured net.Conn) *net.TCPConn {
	return nearpath.BareTCP(conn, secured, o.Config.ServerCreds)
}

// handshake does the server's part of creds' handshake on conn. If creds are TLS, conn stays open
// when the handshake fails: if the handshake closed it, the alert could get lost. Other
// credentials get conn itself, as in grpc-go, because they may look at its type.
func handshake(creds credentials.TransportCredentials, conn net.Conn) (secured net.Conn, auth credentials.AuthInfo, mixes bool, err error) {
	if !nearpath.IsTLS(creds) {
		secured, auth, err = creds.ServerHandshake(conn)
		return secured, auth, false, err
	}
	kept := &keptOpen{Conn: conn}
	secured, auth, err = creds.ServerHandshake(kept)
	if err == nil {
		kept.closes.Store(true)
	}
	return secured, auth, kept.mixes, err
}

// keptOpen is a connection that the handshake cannot close.
type keptOpen struct {
	net.Conn
	closes atomic.Bool
	mixes  bool
}

// Offered is called by credentials, during the handshake, with the protocols that the client
// offers.
func (k *keptOpen) Offered(protocols []string) { k.mixes = slices.Contains(protocols, "http/1.1") }

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (k *keptOpen) NetConn() net.Conn { return k.Conn }

func (k *keptOpen) Close() error {
	if k.closes.Load() {
		return k.Conn.Close()
	}
	return nil
}
