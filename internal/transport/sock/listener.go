package sock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/sniff"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/wire"
)

// A Listener implements [link.Listener] over any net.Listener.
type Listener struct {
	net.Listener // nil if the listener is for ServeConn
	Options      Options

	// Path is the path at which HTTP/1 clients open a WebSocket; "" for any.
	Path string

	// HTTP1 and HTTP2 take connections whose client speaks HTTP. GRPC takes connections of HTTP/2
	// whose client speaks gRPC. If HTTP2 or GRPC is nil, the other takes all of HTTP/2; what none
	// takes, the listener refuses in the client's protocol. They run on the connection's goroutine.
	HTTP1, HTTP2, GRPC func(sniff.Handover)

	// Mixes says that HTTP2 takes all connections whose client may send requests of several
	// protocols: its TLS handshake has offered HTTP/1.1, too.
	Mixes bool

	// Near says that clients on this host may move to a nearer path.
	Near bool

	mu      sync.Mutex
	served  bool
	cancel  context.CancelFunc    // ends waits for a handshake slot
	pending map[net.Conn]struct{} // connections whose handshake has not finished
	retired bool                  // no more connections are accepted
	closed  bool                  // retired is set, too, and handshakes are ended
	all     sync.WaitGroup
	offers  nearpath.Offers

	closeOnce sync.Once // for listeners of users, which might not allow a second Close
}

// Sessions implements [link.Listener]. It fails if it was called before. It returns nil
// when the listener is closed, and otherwise the error that stops it.
func (l *Listener) Sessions(accept func(link.Session) link.Acceptor) error {
	ctx := l.begin()
	if ctx == nil {
		return fmt.Errorf("%v: %w", l.Addr(), link.ErrServed)
	}
	defer l.cancel()
	if lis, ok := l.Listener.(syscall.Conn); ok {
		scmrights.Refuse(lis)
	}
	claim(l.Listener)
	defer l.all.Wait()
	defer l.offers.Withdraw()
	for pause := time.Duration(0); ; {
		neverBlock(bare(l.Listener))
		conn, err := l.Accept()
		switch {
		case err == nil && bare(l.Listener) == nil && l.isRetired():
			_ = conn.Close() // as grpc-go does: the user's Accept has ignored that the listener was closed
		case err == nil:
			pause = 0
			l.all.Go(func() { _, _ = l.serve(ctx, conn, accept, nil) })
		case l.isRetired():
			for _, conn := range queued(bare(l.Listener)) {
				l.all.Go(func() { _, _ = l.serve(ctx, conn, accept, nil) })
			}
			l.closeListener()
			return nil
		case errors.Is(err, net.ErrClosed):
			return nil
		case !sockopt.Temporary(err):
			return err
		default: // usually out of descriptors, which other connections will free
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		}
	}
}

// begin returns a context that ends when the listener is closed, or nil if begin was called before.
func (l *Listener) begin() (ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.served {
		return nil
	}
	l.served = true
	l.pending = make(map[net.Conn]struct{})
	ctx, l.cancel = context.WithCancel(context.Background())
	if l.closed {
		l.cancel()
	}
	return ctx
}

// ServeConn serves conn as Sessions serves a connection that it has accepted. It must be called
// only once, and instead of Sessions. It returns when the handshake has ended. The result wait
// waits until the connection is closed, and returns an error if no session has come about.
func (l *Listener) ServeConn(conn net.Conn, accept func(link.Session) link.Acceptor) (wait func() error, err error) {
	ctx := l.begin()
	defer l.cancel()
	return l.serve(ctx, conn, accept, make(chan struct{}))
}

// A watched is a connection whose Close also closes a channel.
type watched struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// NetConn returns the connection below, as NetConn of a *tls.Conn does.
func (w *watched) NetConn() net.Conn { return w.Conn }

// CloseWrite ends the writes, if the connection below can do that.
func (w *watched) CloseWrite() error {
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (w *watched) Close() error {
	defer w.once.Do(func() { close(w.closed) })
	return w.Conn.Close()
}

// retireTimeout is how long clients may take for their handshake after Retire. They may have made calls
// already.
const retireTimeout = time.Second

// Retire ends Sessions, as Close does. But first the listener serves the connections that clients
// have already made. It accepts no more. After retireTimeout it closes connections that are still
// in their handshake.
func (l *Listener) Retire() {
	l.offers.Withdraw() // before the listener is closed: another server may take its port then
	l.mu.Lock()
	l.retired = true
	l.mu.Unlock()
	time.AfterFunc(retireTimeout, l.abandon)
	if lis := bare(l.Listener); lis != nil && lis.SetDeadline(time.Unix(1, 0)) == nil {
		return // Accept fails, and Sessions closes the listener
	}
	l.closeListener()
}

// A socket is a listening socket.
type socket interface {
	syscall.Conn
	SetDeadline(time.Time) error
}

// bare returns lis if it is nothing but a socket, and nil otherwise: a user's listener may do more
// than accept a connection.
func bare(lis net.Listener) socket {
	switch l := lis.(type) {
	case *net.TCPListener:
		return l
	case *net.UnixListener:
		return l
	case interface{ Bare() *net.UnixListener }: // package socketfile's
		return l.Bare()
	}
	return nil
}

// Close implements [net.Listener]. It closes connections in their handshake. Open sessions
// stay open.
func (l *Listener) Close() error {
	l.abandon()
	return l.closeListener()
}

// abandon closes connections in their handshake.
func (l *Listener) abandon() {
	l.offers.Withdraw()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired, l.closed = true, true
	for conn := range l.pending {
		_ = conn.Close()
	}
	if l.cancel != nil {
		l.cancel()
	}
}

// closeListener closes the listener below, if there is one and it is open.
func (l *Listener) closeListener() (err error) {
	l.closeOnce.Do(func() {
		if l.Listener != nil {
			err = l.Listener.Close()
		}
	})
	return err
}

// isRetired reports whether Retire or Close was called. Not all listeners return net.ErrClosed
// after that.
func (l *Listener) isRetired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retired
}

// addPending records that conn is in its handshake. It reports false if the listener is closed.
func (l *Listener) addPending(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.pending[conn] = struct{}{}
	}
	return !l.closed
}

func (l *Listener) removePending(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, conn)
}

// serve starts a session over conn, or refuses it. One deadline bounds the whole handshake,
// however slowly the peer sends. If the channel closed is not nil, the result wait is
// ServeConn's, and serve may make the connection's Close close the channel.
func (l *Listener) serve(ctx context.Context, conn net.Conn, accept func(link.Session) link.Acceptor, closed chan struct{}) (wait func() error, err error) {
	if u, ok := conn.(*net.UnixConn); ok {
		scmrights.Refuse(u) // in case the listener was not a syscall.Conn
	}
	if !l.addPending(conn) {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	defer l.removePending(conn)
	deadline := l.Options.Deadline()
	_ = conn.SetDeadline(deadline)
	secured, auth, before, mixes, err := l.Options.accepted(conn)
	if err != nil {
		if !errors.Is(err, credentials.ErrConnDispatched) { // a dispatched conn has another owner
			logFailed(conn, "the security handshake", err)
			sniff.RefuseHandshake(conn, err)
		}
		return nil, err
	}
	over, first, p, err := l.readProtocol(ctx, secured, auth, before, deadline)
	switch {
	case err != nil:
		if err != errRefused {
			logFailed(conn, "finding out the protocol", err)
		}
		_ = secured.Close()
		return nil, err
	case p == sniff.Native:
		c := nearpath.Accepted{Conn: secured, Over: over, Peer: link.Peer{AuthInfo: auth}, First: first, Deadline: deadline, Accept: accept}
		if !l.offerNearer(ctx, conn, &c) {
			_ = secured.Close()
			return nil, net.ErrClosed
		}
		l.removePending(conn)
		s := l.Options.startSession(c)
		if s == nil {
			return nil, net.ErrClosed
		}
		return func() error {
			<-s.Gone()
			return s.Meet(context.Background()) // the session has ended, so this returns at once
		}, nil
	}
	if closed != nil {
		secured = &watched{Conn: secured, closed: closed}
	}
	h := sniff.Handover{Conn: secured, First: first, Auth: auth, Deadline: deadline, Path: l.Path, Accept: accept}
	switch takes := !l.Options.RequireUpgrade; {
	case takes && p == sniff.HTTP1 && l.HTTP1 != nil:
		l.removePending(conn) // the taker may keep it longer than the listener is open
		l.HTTP1(h)
	case takes && p == sniff.HTTP2 && (l.HTTP2 != nil || l.GRPC != nil):
		l.removePending(conn)
		l.takeHTTP2(h, mixes)
	default:
		l.logRefused(conn, p, first)
		sniff.Refuse(secured, p, first)
		return nil, errors.New("the client speaks a protocol that this server does not take")
	}
	return func() error {
		<-closed
		return nil
	}, nil
}

// offerNearer offers the client of c a nearer path. It returns false if the client has moved or left.
// conn is the connection below c's.
func (l *Listener) offerNearer(ctx context.Context, conn net.Conn, c *nearpath.Accepted) (stays bool) {
	if !l.Near {
		return true
	}
	greet := func(offer string) []byte {
		l.removePending(conn) // the client has ended its handshake
		return l.Options.serverMux(*c).Greeting(true, wire.FeatureNear, offer)
	}
	return l.offers.Make(ctx, offering{l}, l.Options.Options, l.Options.acceptedTCP(conn, c.Conn), c, greet)
}

// An offering implements [nearpath.Listener].
type offering struct{ l *Listener }

func (o offering) Go(f func())                   { o.l.all.Go(f) }
func (o offering) AddPending(conn net.Conn) bool { return o.l.addPending(conn) }
func (o offering) RemovePending(conn net.Conn)   { o.l.removePending(conn) }
func (o offering) Start(c nearpath.Accepted)     { o.l.Options.startSession(c) }

// takeHTTP2 hands a connection of HTTP/2 to its server. mixes says that the client may send
// requests of several protocols over the connection.
func (l *Listener) takeHTTP2(h sniff.Handover, mixes bool) {
	switch {
	case l.GRPC == nil, mixes && l.Mixes && l.HTTP2 != nil:
		l.HTTP2(h)
	case l.HTTP2 == nil:
		l.GRPC(h)
	default:
		sniff.TakeHTTP2(h, l.GRPC, l.HTTP2, l.Options.Deadline)
	}
}

// errRefused is the error of a connection that was refused in nearcall's protocol.
var errRefused = errors.New("the client was refused")

// readProtocol finds out which protocol conn's client speaks. It answers the client's question and
// its offer of an upgrade. before was already read from conn, and auth is the result of the
// security handshake. over is the connection that a session then uses: conn, or the one that
// replaces it.
func (l *Listener) readProtocol(ctx context.Context, conn net.Conn, auth credentials.AuthInfo, before []byte, deadline time.Time) (over mux.Conn, first []byte, p sniff.Protocol, err error) {
	offers := l.Options.Upgrade.FirstLine()
	first, p, err = sniff.Read(conn, before, offers)
	chosen := sniff.Agreed(auth) // the client knows that it must speak nearcall
	if err == nil && p == sniff.Question && !chosen {
		chosen = true
		first, p, err = sniff.Answer(conn, first, offers)
	}
	if err == nil && p == sniff.Offer {
		var why error
		if over, first, why = l.Options.Answer(ctx, conn, first, deadline); why == nil {
			return over, nil, sniff.Native, nil
		}
		nearpath.LogDeclined(sockopt.PeerName(conn), why)
		if first, p, err = sniff.Read(conn, first, offers); p == sniff.Offer { // a second one
			p = sniff.Unknown
		}
	}
	code, why := wire.ByeClosed, ""
	switch {
	case err != nil:
	case p == sniff.Native && l.Options.RequireUpgrade:
		why = "this server takes calls over shared memory only: dial shm:PATH, from a process of the same user"
		l.logRefused(conn, p, first)
	case p != sniff.Native && chosen:
		code = wire.ByeProtocol
		why = fmt.Sprintf("the client has asked for nearcall's protocol, or agreed on it by ALPN, and must speak that: it began with %.20q", first)
		logger.Infof("refused %s: %s", sockopt.PeerName(conn), why)
	}
	if why != "" {
		sniff.RefuseNative(conn, code, why)
		err = errRefused
	}
	return conn, first, p, err
}

// Serve starts a session over conn, whose client speaks nearcall's protocol. If peer has no
// addresses, conn's are used. The session's handshake must end before deadline.
func (o Options) Serve(conn net.Conn, peer link.Peer, deadline time.Time, accept func(link.Session) link.Acceptor) {
	o.startSession(nearpath.Accepted{Conn: conn, Over: conn, Peer: peer, Deadline: deadline, Accept: accept})
}

// startSession starts a session over c. It returns nil if c.Accept has refused the session.
func (o Options) startSession(c nearpath.Accepted) *mux.Session {
	_ = c.Conn.SetDeadline(time.Time{})
	s := mux.New(c.Over, o.serverMux(c))
	acceptor := c.Accept(s)
	if acceptor == nil {
		_ = c.Over.Close()
		return nil
	}
	s.Start(acceptor)
	return s
}

// serverMux returns the options of a session over c.
func (o Options) serverMux(c nearpath.Accepted) mux.Options {
	name := "a client"
	if a := cmp.Or(c.Peer.Addr, c.Conn.RemoteAddr()); a != nil {
		name = a.Network() + ":" + a.String()
	}
	m := o.mux(name, false, c.Conn, c.Over != mux.Conn(c.Conn), c.Peer)
	m.HelloTime = cmp.Or(time.Until(c.Deadline), -1)
	m.First, m.Greeted = c.First, c.Greeted
	return m
}
