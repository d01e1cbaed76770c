// Package net stands for Go's own in grpc-go's tests. What tests listen on and dial is mapped by package near; all
// else is exported again by a file that is generated beside this one, in the copy that the tests are built in.
package net

import (
	"context"
	gonet "net"
	"time"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

// Listen is net.Listen, mapped.
func Listen(network, address string) (gonet.Listener, error) { return near.Listen(network, address) }

// Dial is net.Dial, mapped.
func Dial(network, address string) (gonet.Conn, error) {
	return gonet.Dial(near.Dialled(network, address))
}

// DialTimeout is net.DialTimeout, mapped.
func DialTimeout(network, address string, d time.Duration) (gonet.Conn, error) {
	network, address = near.Dialled(network, address)
	return gonet.DialTimeout(network, address, d)
}

// A Dialer is a net.Dialer, mapped.
type Dialer struct{ gonet.Dialer }

// DialContext is net.Dialer's, mapped.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (gonet.Conn, error) {
	network, address = near.Dialled(network, address)
	return d.Dialer.DialContext(ctx, network, address)
}

// Dial is net.Dialer's, mapped.
func (d *Dialer) Dial(network, address string) (gonet.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}
