package targets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/nearcall/nearcall/internal/counters"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/nearpath"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
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
		Authority: authority, Client: o, Options: sock.Options{Options: nearpath.Options{Config: &o.Connections}, Unix: c.Unix}, Accept: c.Accept,
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

// Endpoints connects to the addresses that resolvers return. An address is HOST:PORT, or one of
// nearcall's targets. Servers at HOST:PORT, tcp:HOST:PORT and at unix sockets may speak nearcall's
// protocol or only gRPC.
type Endpoints struct {
	opts    *options.Client
	caller  Caller                           // its Authority is unused
	creds   credentials.TransportCredentials // nil for none
	upgrade *nearpath.Upgrade
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
	over, native, err := sniff.Ask(ctx, conn, auth)
	if err != nil {
		_ = conn.Close()
		return nil, nil, nil, err
	}
	if !native {
		counters.Stay(sniff.ErrOnlyGRPC)
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
