package nearcall

import (
	"fmt"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// dialInproc returns the dialer of inproc targets.
func dialInproc(t *parsedTarget, o *dialOptions) (link.Dialer, string, error) {
	return inproc.Dialer{Name: t.rest, Options: o.inproc()}, t.scheme.authority(t), nil
}

// dialSocket returns the dialer of socket targets. Unix sockets can become shared
// memory.
func dialSocket(t *parsedTarget, o *dialOptions) (link.Dialer, string, error) {
	if t.network == "tcp" && t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", writeTCP)
	}
	if t.network == "unix" && o.dial == nil {
		if err := socketfile.Supported(); err != nil {
			return nil, "", err
		}
	}
	creds, err := o.security(t)
	if err != nil {
		return nil, "", err
	}
	authority, err := o.addressed(t)
	if err != nil {
		return nil, "", err
	}
	d := sock.Dialer{
		Target: t.text, GRPC: t.forGRPC(), Network: t.network, Address: t.address,
		Authority: authority, Options: o.socket, Conn: o.dial,
	}
	d.Options.Creds, d.Options.Upgrade = creds, toSharedMemory(o.memory, false)
	if o.dial != nil {
		d.Address = t.forDialer()
	}
	return d, authority, nil
}

// dialShm returns the dialer of shm targets: sockets that must become shared memory.
func dialShm(t *parsedTarget, o *dialOptions) (link.Dialer, string, error) {
	o.socket.RequireUpgrade, o.socket.NoUpgrade = true, false
	return dialSocket(t, o)
}
