// Package sock carries calls over sockets: unix sockets, TCP, and whatever else
// a net.Listener accepts, with the transport credentials that gRPC has.
package sock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
)

// Options set up the sessions of a dialer or a listener. The zero value of a
// field is its default.
type Options struct {
	// Creds secure a connection. Without them unix sockets count as private,
	// as gRPC's local credentials take them to be, and other connections as
	// not secured.
	Creds credentials.TransportCredentials

	Window     int           // of a call, in bytes
	ConnWindow int           // of all calls of a connection together, in bytes
	Block      int           // the longest header or trailer that is taken, in bytes
	Calls      uint32        // that a client may have open at a time; 0 for any number
	Handshake  time.Duration // in which a peer has to say who it is
}

func (o Options) mux(name string, client bool, conn net.Conn, auth credentials.AuthInfo) mux.Options {
	return mux.Options{
		Name: name, Client: client, Window: o.Window, ConnWindow: o.ConnWindow, Block: o.Block, Calls: o.Calls, Handshake: o.Handshake,
		Peer: link.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: auth},
	}
}

type authInfo struct {
	credentials.CommonAuthInfo
	kind string
}

// AuthType implements [credentials.AuthInfo]. It is that of gRPC's local or
// insecure credentials.
func (a authInfo) AuthType() string { return a.kind }

// plain describes a connection without credentials.
func plain(conn net.Conn) credentials.AuthInfo {
	if conn.LocalAddr().Network() == "unix" {
		return authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, "local"}
	}
	return authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, "insecure"}
}

// A Dialer implements [link.Dialer].
type Dialer struct {
	Target    string // for errors
	Network   string // as net.Dial has it
	Address   string
	Authority string // that the server's certificate is held to
	Options   Options

	// Conn opens the connection, unless nil in place of net.Dialer.
	Conn func(ctx context.Context, address string) (net.Conn, error)
}

// Dial implements [link.Dialer]. It returns when the server has said hello.
func (d Dialer) Dial(ctx context.Context) (link.Session, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Target, err)
	}
	auth := plain(conn)
	if d.Options.Creds != nil {
		secured, info, err := d.Options.Creds.ClientHandshake(ctx, d.Authority, conn)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: the credentials' handshake failed: %w", d.Target, err)
		}
		conn, auth = secured, info
	}
	s := mux.New(conn, d.Options.mux(d.Target, true, conn, auth))
	s.Start(nil)
	if err := s.Meet(ctx); err != nil {
		_ = s.Close(err)
		return nil, err
	}
	return s, nil
}

func (d Dialer) connect(ctx context.Context) (net.Conn, error) {
	if d.Conn != nil {
		return d.Conn(ctx, d.Address)
	}
	return new(net.Dialer).DialContext(ctx, d.Network, d.Address)
}

// A Listener implements [link.Listener] over any net.Listener.
type Listener struct {
	net.Listener
	Options Options

	mu      sync.Mutex
	served  bool
	pending map[net.Conn]struct{} // that have not said who they are
	closed  bool
	all     sync.WaitGroup
}

// Sessions implements [link.Listener]. It may be called once. It returns nil
// when the listener was closed, and otherwise why it cannot go on.
func (l *Listener) Sessions(accept func(link.Session) link.Acceptor) error {
	l.mu.Lock()
	if l.served {
		l.mu.Unlock()
		return fmt.Errorf("%v: %w", l.Addr(), link.ErrServed)
	}
	l.served = true
	l.pending = make(map[net.Conn]struct{})
	l.mu.Unlock()
	defer l.all.Wait()
	for pause := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			l.all.Go(func() { l.serve(conn, accept) })
		case errors.Is(err, net.ErrClosed):
			return nil
		case !temporary(err):
			return err
		default: // out of descriptors, mostly: others are about to be closed
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		}
	}
}

func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// Close implements [net.Listener]. Sessions that were made go on.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	for conn := range l.pending {
		_ = conn.Close()
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// hold notes that conn has not said who it is yet. It reports false when the
// listener is closed.
func (l *Listener) hold(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.pending[conn] = struct{}{}
	}
	return !l.closed
}

func (l *Listener) release(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, conn)
}

// serve makes a session of conn.
func (l *Listener) serve(conn net.Conn, accept func(link.Session) link.Acceptor) {
	auth := plain(conn)
	if creds := l.Options.Creds; creds != nil {
		if !l.hold(conn) {
			_ = conn.Close()
			return
		}
		_ = conn.SetDeadline(time.Now().Add(cmp.Or(l.Options.Handshake, mux.DefaultHandshake)))
		secured, info, err := creds.ServerHandshake(conn)
		l.release(conn)
		if err != nil {
			_ = conn.Close()
			return
		}
		_ = conn.SetDeadline(time.Time{})
		conn, auth = secured, info
	}
	s := mux.New(conn, l.Options.mux(conn.RemoteAddr().Network()+":"+conn.RemoteAddr().String(), false, conn, auth))
	acceptor := accept(s)
	if acceptor == nil {
		_ = conn.Close()
		return
	}
	s.Start(acceptor)
}
