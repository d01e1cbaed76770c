package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	q "github.com/quic-go/quic-go"
	"google.golang.org/grpc/grpclog"

	"github.com/nearcall/nearcall/internal/lifecycle"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/registry"
)

// unvalidated is how many handshakes may run at a time before new clients must first show that
// they receive packets at their address. This takes one more round trip, except for clients that
// were connected before: they have a token that shows it.
const unvalidated = 64

// A listener implements [registry.Listener]. It keeps its socket until its last session has ended.
// It implements [net.Listener] and [link.Listener].
type listener struct {
	pc       net.PacketConn
	target   string
	settings *registry.Settings
	tls      *tls.Config
	config   *q.Config

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	shakes atomic.Int64 // handshakes that run

	mu     sync.Mutex
	tr     *q.Transport   // nil before Sessions
	needed sync.WaitGroup // what needs the socket: the sessions, and the method Sessions
}

func listen(rest string) (registry.Listener, error) {
	pc, err := openSocket(rest)
	if err != nil {
		return nil, err
	}
	return newListener(pc, reachable(rest, pc.LocalAddr())), nil
}

func openSocket(address string) (net.PacketConn, error) {
	pc, err := net.ListenPacket("udp", address)
	if err == nil {
		checkBuffers(pc)
	}
	return pc, err
}

// reachable returns the target with which clients reach the socket at addr. rest is the target
// that was listened on, without its scheme.
func reachable(rest string, addr net.Addr) string {
	host, _, _ := net.SplitHostPort(rest)
	_, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return "quic:" + net.JoinHostPort(host, port)
}

func newListener(pc net.PacketConn, target string) *listener {
	l := &listener{pc: pc, target: target}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *listener) Addr() net.Addr { return l.pc.LocalAddr() }
func (l *listener) Target() string { return l.target }

func (l *listener) Accept() (net.Conn, error) {
	return nil, errors.New("quic: clients do not arrive as byte streams; pass the listener to the Serve of a nearcall.Server")
}

func (l *listener) Configure(s *registry.Settings) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settings == nil {
		l.settings, l.tls, l.config = s, secured(s.TLS), config(s.Config)
	}
	return nil
}

// Close implements [net.Listener]. The sessions go on.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil
	}
	l.cancel()
	go func() {
		l.needed.Wait()
		if l.tr != nil {
			_ = l.tr.Close()
		}
		_ = l.pc.Close()
	}()
	return nil
}

func (l *listener) Sessions(accept func(link.Session) link.Acceptor) error {
	ln, err := l.listen()
	if err != nil {
		return err
	}
	defer l.needed.Done()
	for {
		conn, err := ln.Accept(l.ctx)
		switch {
		case l.ctx.Err() != nil:
			if err == nil {
				refuse(conn)
			}
			return nil
		case err != nil:
			return err
		}
		l.begin(conn, accept)
	}
}

func refuse(conn *q.Conn) {
	_ = conn.CloseWithError(0, "the server takes no new connections")
}

// begin begins the session of a connection, whose handshake is complete.
func (l *listener) begin(conn *q.Conn, accept func(link.Session) link.Acceptor) {
	l.shaken(conn)
	if helloTime(l.settings.Config) < 0 { // calls may arrive before the HELLO that would be too late
		refuse(conn)
		return
	}
	s := newSession(conn, sessionOptions{
		name: "quic:" + conn.RemoteAddr().String(), config: l.settings.Config, silence: silenceOf(l.config), limits: lifecycle.LimitsOf(l.settings.Config, true, closeTimeout),
		handshake: helloTime(l.settings.Config), gone: l.needed.Done,
	})
	a := accept(s)
	if a == nil {
		refuse(conn)
		return
	}
	l.needed.Add(1)
	s.start(a)
}

// listen starts listening, for Sessions, which needs the socket then.
func (l *listener) listen() (*q.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tr != nil {
		return nil, link.ErrServed
	}
	if l.settings == nil {
		return nil, errors.New("quic: the listener is not configured; pass it to the Serve of a nearcall.Server")
	}
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	l.tr = &q.Transport{
		Conn:                l.pc,
		VerifySourceAddress: func(net.Addr) bool { return l.shakes.Load() >= unvalidated },
		ConnContext:         l.shake,
	}
	l.tr.StatelessResetKey = (*q.StatelessResetKey)(l.settings.Config.StatelessResetKey)
	// A closed quic-go listener would leave new clients without an answer while the sessions go on.
	own := l.config.Clone()
	l.config.GetConfigForClient = func(*q.ClientInfo) (*q.Config, error) {
		if l.ctx.Err() != nil {
			return nil, errors.New("the server takes no new connections")
		}
		return own, nil
	}
	l.needed.Add(1)
	ln, err := l.tr.Listen(l.tls.Clone(), l.config)
	if err != nil {
		l.needed.Done()
	}
	return ln, err
}

// shake counts the handshake of a connection until it ends, or fails.
func (l *listener) shake(ctx context.Context, client *q.ClientInfo) (context.Context, error) {
	l.shakes.Add(1)
	stop := context.AfterFunc(ctx, func() {
		l.shakes.Add(-1)
		if l.ctx.Err() == nil {
			logger.Infof("the security handshake with %v failed: %q", client.RemoteAddr, context.Cause(ctx))
		}
	})
	return context.WithValue(ctx, shakeKey{}, stop), nil
}

type shakeKey struct{}

// shaken is called when the handshake of conn is complete.
func (l *listener) shaken(conn *q.Conn) {
	if stop, ok := conn.Context().Value(shakeKey{}).(func() bool); ok && stop() {
		l.shakes.Add(-1)
	}
}

var logger = grpclog.Component("nearcall")
