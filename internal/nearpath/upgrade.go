package nearpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/mux"
)

// An Upgrade replaces a unix socket with something faster between two processes of one machine. A
// client offers it before it sends anything else, and the server accepts or declines.
type Upgrade struct {
	Line    string // the start of an offer
	Network string // the network in the addresses of upgraded connections

	// Trusts returns an error if this side must not offer the upgrade to the process at the other
	// end.
	Trusts func(conn *net.UnixConn) error

	// Offer offers the upgrade over conn. It returns the connection that replaces conn. If it
	// returns an error, conn stays in use, and rest holds the bytes that Offer has read from
	// conn.
	Offer func(conn *net.UnixConn) (c mux.Conn, rest []byte, err error)

	// Answer answers an offer, of which first was already read, and returns the same as Offer. If
	// decline is not empty, Answer declines for this reason; otherwise conn is a *net.UnixConn.
	// If the upgrade is required and other connections use up all memory, Answer waits a while
	// before it declines. deadline is conn's, which Answer restores. ctx ends when the caller no
	// longer wants the connection.
	Answer func(ctx context.Context, conn net.Conn, first []byte, decline string, required bool, deadline time.Time) (c mux.Conn, rest []byte, err error)
}

// FirstLine returns the start of an offer, or "" if offers are not answered.
func (u *Upgrade) FirstLine() string {
	if u == nil {
		return ""
	}
	return u.Line
}

// AddressOf returns the address of an upgraded connection whose socket has address a. The address
// has the same type as addresses of unix sockets.
func (u *Upgrade) AddressOf(a net.Addr) net.Addr {
	return &net.UnixAddr{Name: a.String(), Net: u.Network}
}

// errTurnedOff is the reason why nothing is upgraded if the user wants that.
var errTurnedOff = counters.Disabled.New("DisableSharedMemory or WithDisableSharedMemory")

// turnedOff returns errTurnedOff if that applies.
func (o Options) turnedOff() error {
	if o.Config.NoSharedMemory && !o.RequireUpgrade {
		return errTurnedOff
	}
	return nil
}

// errStays is the error of connections that must be upgraded but stay sockets.
var errStays = errors.New("shared memory cannot be used")

// Offer offers the upgrade over conn, if conn can be upgraded. It returns the connection for the
// session, the bytes that were already read from it, and whether it has replaced conn.
func (o Options) Offer(ctx context.Context, conn net.Conn) (c mux.Conn, first []byte, upgraded bool, err error) {
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
	if _, ok := conn.(*net.UnixConn); ok {
		counters.Stay(why)
	}
	switch {
	case o.RequireUpgrade && mux.IsGRPCServer(first):
		return nil, nil, false, mux.ErrGRPCServer
	case o.RequireUpgrade:
		return nil, nil, false, fmt.Errorf("%w: %w", errStays, why)
	case u != nil && !mux.IsGRPCServer(first):
		LogDeclined(fmt.Sprint(u.RemoteAddr()), why)
	}
	return conn, first, false, nil
}

// upgradable returns conn as a socket, or the reason why it cannot be upgraded.
func (o Options) upgradable(conn net.Conn) (*net.UnixConn, error) {
	u, ok := conn.(*net.UnixConn)
	switch {
	case o.Upgrade == nil:
		return nil, counters.Unsupported.New("this system has none")
	case o.turnedOff() != nil:
		return nil, errTurnedOff
	case !ok:
		return nil, counters.Wrapped.New("the connection is not a unix socket itself")
	case abstract(u):
		return nil, counters.Abstract.New("anybody may connect to an abstract unix socket")
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

// Answer answers a client's offer, within conn's deadline. It returns the connection for
// the session, and what was read from it already.
func (o Options) Answer(ctx context.Context, conn net.Conn, first []byte, deadline time.Time) (mux.Conn, []byte, error) {
	decline := ""
	_, own := o.upgradable(conn)
	if own != nil {
		decline = own.Error()
	}
	c, rest, err := o.Upgrade.Answer(ctx, conn, first, decline, o.RequireUpgrade, deadline)
	if err != nil {
		counters.Stay(cmp.Or(own, err))
	}
	return c, rest, err
}

// LogDeclined logs that a connection with peer stays a socket.
func LogDeclined(peer string, why error) {
	logger.Infof("no shared memory with %s, which stays a unix socket: %q", peer, why)
}
