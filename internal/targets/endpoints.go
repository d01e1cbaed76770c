package targets

import (
	"cmp"
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// Endpoints connects to the addresses that resolvers return. An address is HOST:PORT, or one of
// nearcall's targets. Servers at HOST:PORT, tcp:HOST:PORT and at unix sockets may speak nearcall's
// protocol or only gRPC.
type Endpoints struct {
	opts    *options.Client
	caller  Caller                           // its Authority is unused
	creds   credentials.TransportCredentials // nil for none
	upgrade *sock.Upgrade
}

// NewEndpoints returns Endpoints for connections with opts.
func NewEndpoints(opts *options.Client, c Caller, creds credentials.TransportCredentials) *Endpoints {
	return &Endpoints{opts: opts, caller: c, creds: offering(Secured(creds)), upgrade: SharedMemory(&opts.Connections, false)}
}

// CompareDistance compares addresses by how far their servers are: in the process, on the host, or
// perhaps on another host.
func CompareDistance(a, b string) int { return cmp.Compare(distance(a), distance(b)) }

func distance(address string) int {
	switch socketTarget(address).Scheme.name {
	case "inproc":
		return 0
	case "shm", "unix", "unix-abstract":
		return 1
	}
	return 2
}

// Dial connects to address. If only nearcall's servers can listen there, it opens a session, and
// the connection that it returns is for Handshake alone. authority is the name that the server must
// prove. A program's own dialer gets every address unchanged, and connects.
func (e *Endpoints) Dial(ctx context.Context, authority, address string) (net.Conn, error) {
	if e.opts.HasConnDialer() {
		return sock.Dialer{Client: e.opts, Address: address}.Connect(ctx)
	}
	t := socketTarget(address)
	if t.Scheme != schemeGRPC && (t.network == "" || t.Scheme.name == "shm") {
		c := e.caller
		c.Authority = authority
		d, _, err := t.Dialer(e.opts, c)
		if err != nil {
			return nil, err
		}
		s, err := d.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return opened{session: s}, nil
	}
	return e.dialer(t).Connect(ctx)
}

// socketTarget returns the target for an address. If the address is not a target of nearcall's,
// its scheme is grpc-go's.
func socketTarget(address string) *Target {
	if t, err := Parse(address); err == nil && !t.IsGRPC() {
		return t
	}
	return &Target{Scheme: schemeGRPC, text: address, Rest: address, network: "tcp", address: address}
}

func (e *Endpoints) dialer(t *Target) sock.Dialer {
	d := t.socketDialer(e.opts, "", e.caller)
	d.GRPC, d.Options.Upgrade, d.Near = "", e.upgrade, inProcess
	return d
}

// Handshake secures a connection of Dial or of other code, and asks the server for its protocol. If
// the server speaks nearcall's, Handshake returns a session, and otherwise a connection for grpc-go
// and the result of the security handshake. authority is the name that the server must prove.
func (e *Endpoints) Handshake(ctx context.Context, authority string, conn net.Conn) (link.Session, net.Conn, credentials.AuthInfo, error) {
	if o, ok := conn.(opened); ok {
		return o.session, nil, nil, nil
	}
	name, raw := "", conn
	if a := conn.RemoteAddr(); a != nil {
		name = a.String()
	}
	d := e.dialer(&Target{Scheme: schemeGRPC, text: name, network: "tcp"})
	auth := credentials.AuthInfo(nil)
	if e.creds == nil {
		auth = d.Options.PlainAuth(conn)
	} else {
		secured, info, err := e.creds.ClientHandshake(ctx, authority, conn)
		if err != nil {
			return nil, nil, nil, err
		}
		conn, auth, d.Creds = secured, info, e.creds
	}
	over, native, err := sock.Ask(ctx, conn, auth)
	if err != nil {
		_ = conn.Close()
		return nil, nil, nil, err
	}
	if !native {
		counters.Stay(sock.ErrOnlyGRPC)
		return nil, over, auth, nil
	}
	s, err := d.Over(ctx, raw, over, auth)
	return s, nil, nil, err
}

// An opened is a net.Conn that stands for a session.
type opened struct {
	net.Conn // nil
	session  link.Session
}

var errUnused = errors.New("the connection was not used")

// Close implements [net.Conn].
func (o opened) Close() error { return o.session.Close(errUnused) }
