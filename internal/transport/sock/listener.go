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
	"github.com/nearcall/nearcall/internal/rights"
)

// A Listener implements [link.Listener] over any net.Listener.
type Listener struct {
	net.Listener
	Options Options

	// Foreign is shown each connection that does not begin as nearcall's do:
	// what was read of it, at least as much as tells its protocol, and the
	// connection, which is secured already, still has the deadline of the
	// handshake, and is closed with the listener for as long as Foreign runs.
	// It returns true when it has taken the connection, which is its own from
	// then on. Any other is refused in its own protocol, as all are where
	// Foreign is nil. It runs on a goroutine of the connection.
	Foreign func(first []byte, conn net.Conn) bool

	mu      sync.Mutex
	served  bool
	cancel  context.CancelFunc    // of what waits for a connection's turn
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
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(context.Background())
	defer l.cancel()
	if l.closed {
		l.cancel()
	}
	l.mu.Unlock()
	if lis, ok := l.Listener.(syscall.Conn); ok {
		rights.Refuse(lis)
	}
	defer l.all.Wait()
	for pause := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			l.all.Go(func() { l.serve(ctx, conn, accept) })
		case l.isClosed(), errors.Is(err, net.ErrClosed):
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
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	return l.Listener.Close()
}

// isClosed reports whether Close was called: not all listeners then return
// net.ErrClosed.
func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// addPending notes that conn has not said who it is yet. It reports false when the
// listener is closed.
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

// serve makes a session of conn, or refuses it. One deadline bounds all that a
// peer does before it is known, however slowly it does it.
func (l *Listener) serve(ctx context.Context, conn net.Conn, accept func(link.Session) link.Acceptor) {
	if u, ok := conn.(*net.UnixConn); ok {
		rights.Refuse(u) // of a listener that could not be told
	}
	if !l.addPending(conn) {
		_ = conn.Close()
		return
	}
	defer l.removePending(conn)
	deadline := time.Now().Add(cmp.Or(l.Options.Handshake, mux.DefaultHandshake))
	_ = conn.SetDeadline(deadline)
	secured, auth, err := l.Options.accepted(conn)
	if err != nil {
		if !errors.Is(err, credentials.ErrConnDispatched) { // which says that it is somebody else's now
			refuseHandshake(conn, err)
		}
		return
	}
	over, first, p, err := l.readProtocol(ctx, secured, deadline)
	switch {
	case err != nil:
		_ = secured.Close()
	case p == native:
		l.removePending(conn)
		l.startSession(secured, over, auth, first, deadline, accept)
	case l.Foreign == nil || !l.Foreign(first, secured):
		refuse(secured, p, first)
	}
}

// readProtocol finds out what conn speaks, of which first was read. A session goes on over
// what it returns: conn itself, or what has taken its place.
func (l *Listener) readProtocol(ctx context.Context, conn net.Conn, deadline time.Time) (over mux.Conn, first []byte, p protocol, err error) {
	first, p, err = l.Options.readFirst(conn, nil)
	if err == nil && p == offer {
		var why error
		if over, first, why = l.Options.answer(ctx, conn, first, deadline); why == nil {
			return over, nil, native, nil
		}
		if first, p, err = l.Options.readFirst(conn, first); p == offer { // again
			p = unknown
		}
	}
	if err == nil && p == native && l.Options.RequireUpgrade {
		refuseSocket(conn)
		err = errStays
	}
	return conn, first, p, err
}

// startSession makes a session of conn, over what conn is or has become.
func (l *Listener) startSession(conn net.Conn, over mux.Conn, auth credentials.AuthInfo, first []byte, deadline time.Time, accept func(link.Session) link.Acceptor) {
	_ = conn.SetDeadline(time.Time{})
	name := "a client"
	if a := conn.RemoteAddr(); a != nil {
		name = a.Network() + ":" + a.String()
	}
	o := l.Options.mux(name, false, conn, over != mux.Conn(conn), auth)
	o.Handshake = max(time.Until(deadline), 1)
	o.First = first
	s := mux.New(over, o)
	acceptor := accept(s)
	if acceptor == nil {
		_ = over.Close()
		return
	}
	s.Start(acceptor)
}
