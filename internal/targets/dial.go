package targets

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
	"github.com/nearcall/nearcall/internal/transport/inproc"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// dialInproc returns the dialer of inproc targets.
func dialInproc(t *Target, o *options.Dial) (link.Dialer, string, error) {
	return inproc.Dialer{Name: t.Rest, Options: inproc.Options{Window: o.Socket.Window, Accept: o.Accept}}, t.Scheme.authority(t), nil
}

// dialSocket returns the dialer of socket targets. Unix sockets can become shared memory.
func dialSocket(t *Target, o *options.Dial) (link.Dialer, string, error) {
	if t.network == "tcp" && t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", t.writeAddress())
	}
	if t.network == "unix" && o.Conn == nil {
		if err := socketfile.Supported(); err != nil {
			return nil, "", err
		}
	}
	creds, err := t.security(o)
	if err != nil {
		return nil, "", err
	}
	authority, err := t.addressed(o)
	if err != nil {
		return nil, "", err
	}
	d := t.socketDialer(o, authority)
	d.Options.Creds, d.Options.Upgrade = offering(creds), SharedMemory(o.Memory, false)
	if !o.Socket.RequireUpgrade {
		d.Ordinary = t.ordinary(o, authority, creds)
	}
	return d, authority, nil
}

// socketDialer returns a dialer of t, without credentials.
func (t *Target) socketDialer(o *options.Dial, authority string) sock.Dialer {
	d := sock.Dialer{
		Target: t.text, GRPC: t.forGRPC(), Network: t.network, Address: t.fixed(),
		Authority: authority, Options: o.Socket, Conn: o.Conn, Accept: o.Accept,
	}
	if o.Conn != nil {
		d.Address = t.forDialer()
	}
	if o.Near {
		d.Near = inProcess
	}
	return d
}

// inProcess opens a session within this process in place of a connection over TCP.
func inProcess(window int, client, server link.Peer, dials, accepts func(link.Session) link.Acceptor) (link.Session, error) {
	return inproc.Connect("", inproc.Options{Window: window, Accept: dials, Client: &client, Server: &server}, accepts)
}

// Dialer returns a dialer for a target, which may go to grpc-go.
func Dialer(target string, o *options.Dial) (link.Dialer, error) {
	t, err := Parse(target)
	if err == nil {
		err = o.Err
	}
	var d link.Dialer
	switch {
	case err != nil:
	case t.IsGRPC():
		d = grpcgo.Dialer{Target: t.Rest, Options: o.ToGRPC, Creds: Secured(o.Transport)}
	default:
		d, _, err = t.Dialer(o)
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	return d, nil
}

// ordinary returns a function that opens a session over a connection to an ordinary gRPC server.
// creds have secured the connection.
func (t *Target) ordinary(o *options.Dial, authority string, creds credentials.TransportCredentials) func(context.Context, net.Conn, credentials.AuthInfo) (link.Session, error) {
	opts := o.GRPCKeepalive()
	if o.UserAgent != "" {
		opts = append(opts, grpc.WithUserAgent(o.UserAgent))
	}
	if n := o.Socket.Window; n > 0 {
		opts = append(opts, grpc.WithInitialWindowSize(int32(n)))
	}
	if n := o.Socket.ConnWindow; n > 0 {
		opts = append(opts, grpc.WithInitialConnWindowSize(int32(n)))
	}
	if n := o.Socket.MaxHeaderBytes; n > 0 {
		opts = append(opts, grpc.WithMaxHeaderListSize(uint32(n)))
	}
	return func(ctx context.Context, conn net.Conn, auth credentials.AuthInfo) (link.Session, error) {
		return grpcgo.Over(ctx, conn, auth, creds, t.address, authority, opts)
	}
}

// dialShm returns the dialer of shm targets: sockets that must become shared memory.
func dialShm(t *Target, o *options.Dial) (link.Dialer, string, error) {
	o.Socket.RequireUpgrade, o.Socket.NoUpgrade = true, false
	return dialSocket(t, o)
}
