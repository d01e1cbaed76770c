// Package net replaces Go's package net in grpc-go's tests. Package near maps the addresses
// that tests listen on and dial. A generated file in the copy re-exports everything else.
package net

import (
	"context"
	gonet "net"
	"time"

	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
)

// Listen is net.Listen with mapped addresses.
func Listen(network, address string) (gonet.Listener, error) { return near.Listen(network, address) }

// Dial is net.Dial with mapped addresses.
func Dial(network, address string) (gonet.Conn, error) {
	return gonet.Dial(near.Dialled(network, address))
}

// DialTimeout is net.DialTimeout with mapped addresses.
func DialTimeout(network, address string, d time.Duration) (gonet.Conn, error) {
	network, address = near.Dialled(network, address)
	return gonet.DialTimeout(network, address, d)
}

// A Dialer is a net.Dialer with mapped addresses.
type Dialer struct{ gonet.Dialer }

// DialContext dials the mapped address.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (gonet.Conn, error) {
	network, address = near.Dialled(network, address)
	return d.Dialer.DialContext(ctx, network, address)
}

// Dial dials the mapped address.
func (d *Dialer) Dial(network, address string) (gonet.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}
