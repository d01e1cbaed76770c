package options

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/internal/link"
)

// Client holds the options of a client. It is immutable once [NewClient] has returned it.
type Client struct {
	Connections
	TransportCreds credentials.TransportCredentials // as the user passed them
	BundleCreds    credentials.Bundle
	PerRPC         []credentials.PerRPCCredentials

	ClientUnaryChain  []grpc.UnaryClientInterceptor // the first one outermost
	ClientStreamChain []grpc.StreamClientInterceptor
	UnaryFirst        grpc.UnaryClientInterceptor // before all others; nil for none
	StreamFirst       grpc.StreamClientInterceptor
	ClientStats       []stats.Handler
	DefaultOptions    []grpc.CallOption // they precede the options of each call

	ConfigJSON      *string // the default service config, as the user passed it; nil for none
	NoRetry         bool    // by retry policies
	MaxCallAttempts int
	ClientImmutable bool   // messages are shared with servers that share theirs
	UserAuthority   string // "" for the target's
	AgentPrefix     string // of the user-agent; "" for none

	ConnDialer     func(context.Context, string) (net.Conn, error) // opens connections; nil for net.Dialer
	ConnectBackoff *backoff.Config                                 // nil for the target's
	ConnectTimeout time.Duration                                   // minimum time limit of a connection attempt
	IdleAfter      time.Duration                                   // how long a connection without calls stays open; 0 for ever
	Persistent     bool                                            // the connection is kept without calls
	SessionDialer  link.Dialer                                     // if not nil, replaces the target's
	MovesNearer    bool                                            // connections over TCP to this host find a nearer path
	PeerServer     PeerServer                                      // serves the peer's calls; may be nil

	UserResolvers  []resolver.Builder // for targets that are not nearcall's own
	ChannelOptions []grpc.DialOption  // of grpc-go, for such targets
	NoEnvProxy     bool               // the environment's proxies are not used for such targets
	ToGRPC         []grpc.DialOption  // for targets that go to grpc-go
	WholeToGRPC    bool               // targets that are not nearcall's own go to grpc-go
}

// A PeerServer serves the calls that a client's peer makes. *call.Server is one.
type PeerServer interface {
	// AcceptClient returns the acceptor of a session, or nil if it takes none. counter counts its
	// calls.
	AcceptClient(session link.Session, counter CallCounter) link.Acceptor
}

// A CallCounter counts the running calls of a connection.
type CallCounter interface {
	Begin()
	End()
}

// A DialOption is an option of nearcall.NewClient.
type DialOption interface{ applyClient(*Client) }

type setClient func(*Client)

func (f setClient) applyClient(o *Client) { f(o) }

// SetClient returns a DialOption that calls set. toGRPC are the options of grpc-go that do the
// same, for targets that go to grpc-go.
func SetClient(set func(*Client), toGRPC ...grpc.DialOption) DialOption {
	return setClient(func(o *Client) {
		set(o)
		o.ToGRPC = append(o.ToGRPC, toGRPC...)
	})
}

// WithDialer returns an option that makes d open the sessions of a connection, whatever its target.
func WithDialer(d link.Dialer) DialOption {
	return SetClient(func(o *Client) { o.SessionDialer = d })
}

// NewClient returns the defaults with opts applied.
func NewClient(opts []DialOption) *Client {
	o := &Client{
		ConnectTimeout: 20 * time.Second, IdleAfter: 30 * time.Minute,
	}
	for _, opt := range opts {
		if opt != nil {
			opt.applyClient(o)
		}
	}
	o.completeClient()
	if o.MaxCallAttempts < 2 {
		o.MaxCallAttempts = 5 // gRPC's default
	}
	if o.Persistent {
		o.IdleAfter = 0
	}
	if o.UnaryFirst != nil {
		o.ClientUnaryChain = append([]grpc.UnaryClientInterceptor{o.UnaryFirst}, o.ClientUnaryChain...)
	}
	if o.StreamFirst != nil {
		o.ClientStreamChain = append([]grpc.StreamClientInterceptor{o.StreamFirst}, o.ClientStreamChain...)
	}
	return o
}

// AuthorityOr returns the :authority that the user has set, or else another.
func (o *Client) AuthorityOr(other string) string { return cmp.Or(o.UserAuthority, other) }

// ConfigText returns the default service config, or "" if there is none.
func (o *Client) ConfigText() string {
	if o.ConfigJSON == nil {
		return ""
	}
	return *o.ConfigJSON
}

// HasConnDialer reports whether a function of the user's opens connections.
func (o *Client) HasConnDialer() bool { return o.ConnDialer != nil }

// Proxied reports whether the environment may name a proxy for connections of grpc-go.
func (o *Client) Proxied() bool {
	return !o.NoEnvProxy && (os.Getenv("HTTPS_PROXY") != "" || os.Getenv("https_proxy") != "")
}

// Credentials returns the transport credentials, nil if none are set.
func (o *Client) Credentials() (credentials.TransportCredentials, error) {
	if o.BundleCreds == nil {
		return o.TransportCreds, nil
	}
	if o.TransportCreds != nil {
		return nil, errors.New("a credentials.Bundle cannot be used together with transport credentials")
	}
	creds := o.BundleCreds.TransportCredentials()
	if creds == nil {
		return nil, errors.New("the credentials.Bundle has no transport credentials")
	}
	return creds, nil
}

// CheckInsecure returns an error if the credentials of calls need a secure connection.
func (o *Client) CheckInsecure() error {
	for _, c := range o.PerRPC {
		if c.RequireTransportSecurity() {
			return errors.New("the credentials require transport level security (use nearcall.WithTransportCredentials() to set)")
		}
	}
	return nil
}

// ForConn returns the options for a connection of grpc-go's to one server. Without keepalive there
// is no option for it, because grpc-go would ping every 10 seconds, and ordinary gRPC servers end
// such connections.
func (o *Client) ForConn() (opts []grpc.DialOption) {
	if k := o.Given.Client; k.Time > 0 {
		opts = append(opts, grpc.WithKeepaliveParams(k))
	}
	if o.AgentPrefix != "" {
		opts = append(opts, grpc.WithUserAgent(o.AgentPrefix))
	}
	if n := o.Given.StreamBytes; n > 0 {
		opts = append(opts, grpc.WithInitialWindowSize(n))
	}
	if n := o.Given.ConnBytes; n > 0 {
		opts = append(opts, grpc.WithInitialConnWindowSize(n))
	}
	if n := o.Given.HeaderBytes; n > 0 {
		opts = append(opts, grpc.WithMaxHeaderListSize(min(n, math.MaxInt32)))
	}
	return opts
}

// ForChannel returns the options that grpc-go needs to connect, and to call servers that speak only
// gRPC.
func (o *Client) ForChannel() []grpc.DialOption {
	opts := append(o.ForConn(), grpc.WithMaxCallAttempts(o.MaxCallAttempts))
	opts = append(opts, o.ChannelOptions...)
	if o.ConnectBackoff != nil {
		opts = append(opts, grpc.WithConnectParams(grpc.ConnectParams{Backoff: *o.ConnectBackoff, MinConnectTimeout: o.ConnectTimeout}))
	}
	if o.UserAuthority != "" {
		opts = append(opts, grpc.WithAuthority(o.UserAuthority))
	}
	if o.NoRetry {
		opts = append(opts, grpc.WithDisableRetry())
	}
	return opts
}
