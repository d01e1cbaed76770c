package targets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
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

// dialSocket returns the dialer of socket targets. Unix sockets can become shared
// memory.
func dialSocket(t *Target, o *options.Dial) (link.Dialer, string, error) {
	if t.network == "tcp" && t.host() == "" {
		return nil, "", fmt.Errorf("the host is missing; %s", writeTCP)
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
	if o.Fallback && !o.Socket.RequireUpgrade {
		return t.withFallback(o, d, creds), authority, nil
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

// withFallback returns a dialer that connects through grpc-go, with creds, if d finds an ordinary gRPC
// server.
func (t *Target) withFallback(o *options.Dial, d sock.Dialer, creds credentials.TransportCredentials) link.Dialer {
	target := strings.TrimPrefix(t.forGRPC(), "grpc:")
	if t.network == "tcp" {
		target = "passthrough:///" + t.address
	}
	f := grpcgo.Dialer{
		First:  d,
		IsGRPC: func(err error) bool { return errors.Is(err, mux.ErrGRPCServer) },
		Target: target, Authority: d.Authority,
		Creds: creds, Auth: d.Options.PlainAuth,
		Options: o.GRPCKeepalive(),
	}
	if o.UserAgent != "" {
		f.Options = append(f.Options, grpc.WithUserAgent(o.UserAgent))
	}
	switch {
	case o.Conn != nil:
		f.Options = append(f.Options, grpc.WithContextDialer(o.Conn))
	case t.network == "unix":
		f.Options = append(f.Options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.Connect(ctx) }))
	}
	if n := o.Socket.Window; n > 0 {
		f.Options = append(f.Options, grpc.WithInitialWindowSize(int32(n)))
	}
	if n := o.Socket.ConnWindow; n > 0 {
		f.Options = append(f.Options, grpc.WithInitialConnWindowSize(int32(n)))
	}
	if n := o.Socket.MaxHeaderBytes; n > 0 {
		f.Options = append(f.Options, grpc.WithMaxHeaderListSize(uint32(n)))
	}
	return f
}

// dialShm returns the dialer of shm targets: sockets that must become shared memory.
func dialShm(t *Target, o *options.Dial) (link.Dialer, string, error) {
	o.Socket.RequireUpgrade, o.Socket.NoUpgrade = true, false
	return dialSocket(t, o)
}
