package nearcall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/mux"
	"github.com/nearcall/nearcall/internal/socketfile"
	"github.com/nearcall/nearcall/internal/transport/grpcgo"
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
	d := o.socketDialer(t, authority)
	d.Options.Creds, d.Options.Upgrade = creds, toSharedMemory(o.memory, false)
	if o.fallback && !o.socket.RequireUpgrade {
		return o.withFallback(t, d), authority, nil
	}
	return d, authority, nil
}

// socketDialer returns a dialer of t, without credentials.
func (o *dialOptions) socketDialer(t *parsedTarget, authority string) sock.Dialer {
	d := sock.Dialer{
		Target: t.text, GRPC: t.forGRPC(), Network: t.network, Address: t.fixed(),
		Authority: authority, Options: o.socket, Conn: o.dial, Accept: o.accept,
	}
	if o.server != nil {
		d.Options.MaxStreams = o.server.sockets.MaxStreams
	}
	if o.dial != nil {
		d.Address = t.forDialer()
	}
	return d
}

// connect implements [hook.Connect].
func connect(target string, accept func(link.Session) link.Acceptor, opts ...any) (link.Dialer, error) {
	var all []DialOption
	for _, opt := range opts {
		all = append(all, opt.(DialOption))
	}
	o := newDialOptions(all)
	o.accept = accept
	t, err := parseTarget(target)
	if err == nil {
		err = o.err
	}
	var d link.Dialer
	switch {
	case err != nil:
	case t.scheme.dialer == nil:
		d = grpcgo.Dialer{Target: t.rest, Options: o.grpc, Creds: secured(o.transport)}
	default:
		d, _, err = t.scheme.dialer(t, o)
	}
	if err != nil {
		return nil, fmt.Errorf("nearcall: cannot dial %q: %w", target, err)
	}
	return d, nil
}

// withFallback returns a dialer that connects through grpc-go if d meets an ordinary gRPC
// server.
func (o *dialOptions) withFallback(t *parsedTarget, d sock.Dialer) link.Dialer {
	target := strings.TrimPrefix(t.forGRPC(), "grpc:")
	if t.network == "tcp" {
		target = "passthrough:///" + t.address
	}
	f := grpcgo.Dialer{
		First:  d,
		IsGRPC: func(err error) bool { return errors.Is(err, mux.ErrGRPCServer) },
		Target: target, Authority: d.Authority,
		Creds: d.Options.Creds, Auth: d.Options.PlainAuth,
		Options: []grpc.DialOption{grpc.WithKeepaliveParams(o.socket.Keepalive)},
	}
	if o.UserAgent != "" {
		f.Options = append(f.Options, grpc.WithUserAgent(o.UserAgent))
	}
	switch {
	case o.dial != nil:
		f.Options = append(f.Options, grpc.WithContextDialer(o.dial))
	case t.network == "unix":
		f.Options = append(f.Options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.Connect(ctx) }))
	}
	if n := o.socket.Window; n > 0 {
		f.Options = append(f.Options, grpc.WithInitialWindowSize(int32(n)))
	}
	if n := o.socket.ConnWindow; n > 0 {
		f.Options = append(f.Options, grpc.WithInitialConnWindowSize(int32(n)))
	}
	if n := o.socket.MaxHeaderBytes; n > 0 {
		f.Options = append(f.Options, grpc.WithMaxHeaderListSize(uint32(n)))
	}
	return f
}

// dialShm returns the dialer of shm targets: sockets that must become shared memory.
func dialShm(t *parsedTarget, o *dialOptions) (link.Dialer, string, error) {
	o.socket.RequireUpgrade, o.socket.NoUpgrade = true, false
	return dialSocket(t, o)
}
