package nearpath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/scmrights"
	"github.com/nearcall/nearcall/internal/sockopt"
	"github.com/nearcall/nearcall/internal/wire"
)

var (
	errElsewhere = counters.OtherHost.New("the server is on another host")
	errNoOffer   = counters.NoOffer.New("the server offers nothing nearer: it cannot, or something is in between")

	errForeignName = errors.New("the server names a socket that is none of nearcall's")
)

// A Client is a client that has connected over TCP.
type Client struct {
	Options
	Target    string // for errors
	OwnDialer bool   // the program's own dialer has made the connection
	Accept    func(link.Session) link.Acceptor
	InProcess InProcess
}

// Move asks the server for a nearer path than conn, which the caller closes if there is a nearer
// session or an error. Otherwise Move has set o for a session over conn. tcp is the connection below
// conn, as [BareTCP] returns it.
func (c Client) Move(ctx context.Context, tcp *net.TCPConn, conn net.Conn, o *mux.Options) (link.Session, error) {
	if why := c.mayAsk(tcp); why != nil {
		stay(o, why)
		return nil, nil
	}
	late := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, failed := conn.Write(o.Greeting(c.Accept != nil, wire.FeatureNear, ""))
	o.Greeted = true
	var hello wire.Hello
	if failed == nil {
		o.First, hello = readHello(conn, o.First)
	}
	if !late() {
		return nil, fmt.Errorf("%s: the handshake is not complete: %w", c.Target, ctx.Err())
	}
	if hello.Near == "" {
		stay(o, errNoOffer)
		return nil, nil
	}
	s, why := link.Session(nil), errForeignName
	if n, name, ok := offerOf(hello.Near); ok {
		s, why = c.open(ctx, tcp, n, name, *o)
	}
	switch {
	case why == nil:
		_ = conn.SetWriteDeadline(time.Now().Add(moving))
		_, _ = conn.Write(wire.AppendBye(nil, wire.ByeDone, "the client has taken a nearer path"))
		logPath(fmt.Sprint(o.Peer.Addr), s.Peer().Path.String(), "")
		return s, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: the handshake is not complete: %w", c.Target, ctx.Err())
	}
	_, _ = conn.Write(wire.AppendStay(nil)) // if it fails, so will the session
	stay(o, why)
	return nil, nil
}

// mayAsk returns why a server is not asked for a nearer path.
func (c Client) mayAsk(tcp *net.TCPConn) error {
	if tcp == nil {
		return counters.Wrapped.New("the connection is neither a TCP socket itself nor TLS over one")
	}
	near, far := endsOf(tcp)
	switch {
	case !onThisHost(near.Addr(), far.Addr()):
		return errElsewhere
	case c.OwnDialer:
		return counters.OwnDialer.New("the program's own dialer made the connection, and calls must end when the program closes it")
	case c.Upgrade == nil:
		return counters.Unsupported.New("this system has nothing nearer")
	}
	return nil
}

// stay records and counts the reason why a session stays on TCP. It logs the reason if a nearer
// path was possible.
func stay(o *mux.Options, why error) {
	o.Peer.NotNearer = why.Error()
	counters.Stay(why)
	if why != errElsewhere {
		logPath(fmt.Sprint(o.Peer.Addr), "tcp", o.Peer.NotNearer)
	}
}

// readHello reads until the server's HELLO, or something else, has arrived. The session gets
// all bytes that were read, and finds out what is wrong with them.
func readHello(conn net.Conn, first []byte) ([]byte, wire.Hello) {
	const enough = 4 << 10 // no HELLO is so long
	for {
		if h, n := helloOf(first); n > 0 {
			return first, h
		}
		if n := min(len(first), len(wire.Magic)); len(first) > enough || !strings.HasPrefix(wire.Magic, string(first[:n])) {
			return first, wire.Hello{}
		}
		b := make([]byte, 512)
		n, err := conn.Read(b)
		first = append(first, b[:n]...)
		if err != nil {
			return first, wire.Hello{}
		}
	}
}

// open opens a session with the server that has made an offer over tcp.
func (c Client) open(ctx context.Context, tcp *net.TCPConn, n nonce, name string, o mux.Options) (link.Session, error) {
	var e ends
	e.Client, e.Server = endsOf(tcp)
	e.Namespace = sockopt.NamespaceOf(tcp)
	if here, ok := named.Load(name); ok {
		if offers := here.(*Offers); !offers.limitsAge { // sessions within a process never end because of their age
			o.Peer.Path = counters.InProcess
			return offers.openInProcess(c, n, e, o.Peer)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, moving)
	defer cancel()
	over, err := c.introduce(ctx, n, name, e)
	if err != nil {
		return nil, err
	}
	o.First, o.Greeted, o.Peer.Path = nil, false, counters.SharedMemory
	s, err := mux.Begin(ctx, over, o, c.Accept)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// introduce connects to the name that a server has offered, and returns the connection that the
// unix socket was upgraded to.
func (c Client) introduce(ctx context.Context, n nonce, name string, e ends) (over mux.Conn, err error) {
	if err := c.turnedOff(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Control: scmrights.RefuseFrom}
	conn, err := dialer.DialContext(ctx, "unix", "@"+name)
	if err != nil {
		return nil, fmt.Errorf("the server's socket cannot be reached: %w", errors.Unwrap(err))
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	u := conn.(*net.UnixConn)
	if err := c.Upgrade.Trusts(u); err != nil {
		return nil, err
	}
	if sockopt.NamespaceOf(u) != e.Namespace {
		return nil, counters.Intercepted.New("the TCP connection belongs to another network namespace")
	}
	late := context.AfterFunc(ctx, func() { _ = u.SetDeadline(time.Unix(1, 0)) })
	if _, err = u.Write(appendIntroduction(nil, n, e)); err == nil {
		over, _, err = c.Upgrade.Offer(u)
	}
	if !late() {
		if over != nil {
			_ = over.Close()
		}
		return nil, fmt.Errorf("the server took more than %v: %w", moving, ctx.Err())
	}
	return over, err
}
