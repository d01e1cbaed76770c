package call

import (
	"errors"
	"net"
	"reflect"
	"strconv"
	"time"
)

// grpc-go's transport keeps the connection of a call in its context, under a key of its
// own type, and packages of grpc-go ask for it: authz refuses each call without one.
// Nobody else can name the key, so it is known by the name of its type. A test with
// package authz fails where a version of grpc-go has another.
const (
	connectionKeyPath = "google.golang.org/grpc/internal/transport"
	connectionKeyName = "transport.connectionKey"
)

// isConnectionKey reports whether key is the one. For almost all others that is one
// comparison of lengths.
func isConnectionKey(key any) bool {
	t := reflect.TypeOf(key)
	return t != nil && t.String() == connectionKeyName && t.PkgPath() == connectionKeyPath
}

// A connection is what grpc-go's packages get for that key: a net.Conn that tells
// addresses, and does nothing else.
type connection serverConn

// LocalAddr implements [net.Conn]. Those who ask want a host and a port: an address that
// has none, as of a unix socket or of this process, has the port 0.
func (c *connection) LocalAddr() net.Addr { return withPort(c.peer.LocalAddr) }

// RemoteAddr implements [net.Conn].
func (c *connection) RemoteAddr() net.Addr { return withPort(c.peer.Addr) }

var errNotYours = errors.New("nearcall: the connection of a call is not its handler's to use; it tells addresses and nothing else")

func (*connection) Read([]byte) (int, error)         { return 0, errNotYours }
func (*connection) Write([]byte) (int, error)        { return 0, errNotYours }
func (*connection) Close() error                     { return errNotYours }
func (*connection) SetDeadline(time.Time) error      { return errNotYours }
func (*connection) SetReadDeadline(time.Time) error  { return errNotYours }
func (*connection) SetWriteDeadline(time.Time) error { return errNotYours }

// withPort returns a with a host and a port, whatever a is.
func withPort(a net.Addr) net.Addr {
	p := ported{network: "unknown"}
	if a != nil {
		p = ported{a.Network(), a.String()}
	}
	if _, port, err := net.SplitHostPort(p.address); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return a
		}
	}
	p.address = net.JoinHostPort(p.address, "0")
	return p
}

// ported is an address that was given a port.
type ported struct{ network, address string }

func (p ported) Network() string { return p.network }
func (p ported) String() string  { return p.address }
