package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nearcall/nearcall/internal/mux"
)

// An Upgrade puts something faster in the place of a unix socket whose two ends
// are both processes of this machine that want it: a client offers it before
// anything else is said, and the server takes the offer or declines it.
type Upgrade struct {
	Line    string // what an offer begins with
	Network string // that addresses of upgraded connections have

	// Offer makes a client's offer over conn. It returns what takes conn's place
	// or, with an error, what was read of conn, which then goes on as it is.
	Offer func(conn *net.UnixConn) (c mux.Conn, rest []byte, err error)

	// Answer answers an offer, of which first was read. It returns what Offer
	// does. With a reason to decline it does. conn has the deadline, and has it
	// afterwards; ctx ends when nobody wants the connection any more.
	Answer func(ctx context.Context, conn *net.UnixConn, first []byte, decline string, deadline time.Time) (c mux.Conn, rest []byte, err error)
}

// line is what an offer begins with, if any is answered.
func (u *Upgrade) line() string {
	if u == nil {
		return ""
	}
	return u.Line
}

// upgradedAddr is the address of a connection that is a socket no more.
type upgradedAddr struct {
	net.Addr
	network string
}

// Network implements [net.Addr].
func (a upgradedAddr) Network() string { return a.network }

// errStays is why a connection was not upgraded.
var errStays = errors.New("shared memory cannot be used")

// offer makes a client's offer over conn, if it is one for that. It returns what
// the session goes on over, what of it was read already, and whether that is
// something else than conn.
func (o Options) offer(ctx context.Context, conn net.Conn) (c mux.Conn, first []byte, upgraded bool, err error) {
	u, why := o.upgradable(conn)
	if why == nil {
		late := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		var faster mux.Conn
		faster, first, why = o.Upgrade.Offer(u)
		if !late() {
			why = ctx.Err()
		}
		if why == nil {
			return faster, nil, true, nil
		}
		if faster != nil {
			_ = faster.Close()
			return nil, nil, false, why
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, false, err
	}
	switch {
	case o.RequireUpgrade && mux.IsGRPCServer(first):
		return nil, nil, false, mux.ErrGRPCServer
	case o.RequireUpgrade:
		return nil, nil, false, fmt.Errorf("%w: %w", errStays, why)
	}
	return conn, first, false, nil
}

// upgradable returns conn's socket, or why it stays what it is.
func (o Options) upgradable(conn net.Conn) (*net.UnixConn, error) {
	u, ok := conn.(*net.UnixConn)
	switch {
	case o.Upgrade == nil:
		return nil, errors.New("this system has none")
	case o.NoUpgrade:
		return nil, errors.New("NoUpgrade or WithoutUpgrade is set")
	case !ok:
		return nil, errors.New("the connection is not a unix socket itself")
	case abstract(u):
		return nil, errors.New("anybody may connect to an abstract unix socket")
	}
	return u, nil
}

func abstract(u *net.UnixConn) bool {
	for _, a := range []net.Addr{u.LocalAddr(), u.RemoteAddr()} {
		if a != nil && strings.HasPrefix(a.String(), "@") && len(a.String()) > 1 {
			return true
		}
	}
	return false
}

// answer answers a client's offer, within the deadline that conn has. It returns
// what the session goes on over, and what of it was read already.
func (o Options) answer(ctx context.Context, conn net.Conn, first []byte, deadline time.Time) (mux.Conn, []byte, error) {
	decline := ""
	u, err := o.upgradable(conn)
	if err != nil {
		decline = err.Error()
		u, _ = conn.(*net.UnixConn)
	}
	if u == nil { // an offer over TLS, from somebody who does not know what it is: it is refused
		return nil, first, errStays
	}
	return o.Upgrade.Answer(ctx, u, first, decline, deadline)
}
