package targets

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// dialInproc returns the dialer of inproc targets.
func dialInproc(t *Target, o *options.Client, c Caller) (link.Dialer, string, error) {
	return inproc.Dialer{Name: t.Rest, Options: inproc.Options{Config: &o.Connections, Accept: c.Accept}}, t.Scheme.authority(t), nil
}

// dialSocket returns the dialer of socket targets. Unix sockets can become shared memory, and those
// of shm targets must.
func dialSocket(t *Target, o *options.Client, c Caller) (link.Dialer, string, error) {
	if t.network == "tcp" && t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", t.writeAddress())
	}
	if t.network == "unix" && !o.HasConnDialer() {
		if err := socketfile.Supported(); err != nil {
			return nil, "", err
		}
	}
	creds, err := t.security(o)
	if err != nil {
		return nil, "", err
	}
	authority, err := t.addressed(o, c)
	if err != nil {
		return nil, "", err
	}
	d := t.socketDialer(o, authority, c)
	d.Creds, d.Options.Upgrade = offering(creds), SharedMemory(&o.Connections, false)
	if d.Options.RequireUpgrade = t.Scheme.name == "shm"; !d.Options.RequireUpgrade {
		d.Ordinary = t.ordinary(o, authority, creds)
	}
	return d, authority, nil
}

// socketDialer returns a dialer of t, without credentials.
func (t *Target) socketDialer(o *options.Client, authority string, c Caller) sock.Dialer {
	d := sock.Dialer{
		Target: t.text, GRPC: t.forGRPC(), Network: t.network, Address: t.fixed(),
		Authority: authority, Client: o, Options: sock.Options{Config: &o.Connections, Unix: c.Unix}, Accept: c.Accept,
	}
	if o.HasConnDialer() {
		d.Address = t.forDialer()
	}
	if o.MovesNearer {
		d.Near = inProcess
	}
	return d
}

// inProcess opens a session within this process in place of a connection over TCP.
func inProcess(config *options.Connections, client, server link.Peer, dials, accepts func(link.Session) link.Acceptor) (link.Session, error) {
	return inproc.Connect("", inproc.Options{Config: config, Accept: dials, Client: &client, Server: &server}, accepts)
}

// Dialer returns a dialer for a target, which may go to grpc-go.
func Dialer(target string, o *options.Client, c Caller) (link.Dialer, error) {
	t, err := Parse(target)
	var d link.Dialer
	switch {
	case err != nil:
	case t.IsGRPC():
		d = grpcgo.Dialer{Target: t.Rest, Options: o.ToGRPC, Creds: wholeCreds(o)}
	default:
		d, _, err = t.Dialer(o, c)
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	return d, nil
}

// ordinary returns a function that opens a session over a connection to an ordinary gRPC server.
// creds have secured the connection.
func (t *Target) ordinary(o *options.Client, authority string, creds credentials.TransportCredentials) func(context.Context, net.Conn, credentials.AuthInfo) (link.Session, error) {
	opts := o.ForConn()
	return func(ctx context.Context, conn net.Conn, auth credentials.AuthInfo) (link.Session, error) {
		return grpcgo.Over(ctx, conn, auth, creds, t.address, authority, opts)
	}
}
