// Package options holds the values that the options of package nearcall set. This project's other
// modules, commands and tests use it to make options that package nearcall does not export.
package options

import (
	"context"
	"math"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/resolver"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/link"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// Server holds the options of a server.
type Server struct {
	call.ServerConfig
	Socket sock.Options
	Memory int64        // limit of the shared memory of all connections, in bytes
	Peer   []DialOption // of connections to clients

	GRPCClients, WebClients bool                // the kinds of clients, besides nearcall's, that the server takes
	GRPC                    []grpc.ServerOption // of the grpc.Server for ordinary gRPC clients
	Origins                 []string            // of web pages that may make calls

	ForcedCodec  encoding.CodecV2 // as the user passed it; may be nil
	ForwardCodec ForwardCodec     // the codec of Forward; nil without a Forward

	Accept            func(link.Session) link.Acceptor // makes the acceptor of a session; nil for the server's default
	StatelessResetKey *[32]byte                        // of QUIC; nil for none

	UnaryFirst  grpc.UnaryServerInterceptor // the outermost interceptors; nil for none
	StreamFirst grpc.StreamServerInterceptor
}

// A ForwardCodec is the codec of forwarded calls.
type ForwardCodec interface {
	encoding.CodecV2

	// Encodes reports whether v is a message of forwarded calls.
	Encodes(v any) bool
}

// A ServerOption is an option of nearcall.NewServer.
type ServerOption interface{ applyServer(*Server) }

// SetServer is a ServerOption that calls the function.
type SetServer func(*Server)

func (f SetServer) applyServer(o *Server) { f(o) }

// maxRemoteCalls is the default of MaxConcurrentStreams for connections from other processes.
// Without a limit, each call would cost a client a few bytes, and the server a goroutine and some
// 10 KiB.
const maxRemoteCalls = 1000

// NewServer returns the defaults with opts applied.
func NewServer(opts []ServerOption) *Server {
	o := &Server{
		ServerConfig: call.ServerConfig{MaxRecv: 4 << 20, MaxSend: math.MaxInt32},
		Socket:       sock.Options{MaxStreams: maxRemoteCalls},
		Memory:       1 << 30,
		GRPCClients:  true, WebClients: true,
	}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServer(o)
		}
	}
	o.MaxRemote = o.Socket.MaxStreams
	if o.UnaryFirst != nil {
		o.Unary = append([]grpc.UnaryServerInterceptor{o.UnaryFirst}, o.Unary...)
	}
	if o.StreamFirst != nil {
		o.Stream = append([]grpc.StreamServerInterceptor{o.StreamFirst}, o.Stream...)
	}
	return o
}

// Dial holds the options of a client.
type Dial struct {
	call.ClientConfig
	Transport     credentials.TransportCredentials
	Bundle        credentials.Bundle
	Socket        sock.Options
	ServiceConfig *string                                         // JSON, as the user passed it
	MaxAttempts   int                                             // of a call
	NoRetry       bool                                            // by retry policies
	Memory        int64                                           // limit of shared memory, in bytes
	Conn          func(context.Context, string) (net.Conn, error) // if not nil, replaces net.Dialer
	Backoff       *backoff.Config                                 // nil for the default of the target
	Timeout       time.Duration                                   // minimum time limit of a connection attempt
	IdleTimeout   time.Duration                                   // after which a socket without calls is closed; 0 means never
	Dialer        link.Dialer                                     // if not nil, replaces the target's
	Server        *call.Server                                    // serves the peer's calls; may be nil
	Accept        func(link.Session) link.Acceptor                // of the peer's calls; nil for none
	Near          bool                                            // connections over TCP to this host find a nearer path
	Persistent    bool                                            // the connection is kept without calls
	Resolvers     []resolver.Builder                              // for targets that are not nearcall's own
	Channel       []grpc.DialOption                               // of grpc-go, for such targets
	NoProxy       bool                                            // the environment's proxies are not used for such targets
	ToGRPC        []grpc.DialOption                               // for targets that go to grpc-go
	OnlyGRPC      bool                                            // targets that are not nearcall's own go to grpc-go
	Err           error                                           // of an option; ignored for targets that go to grpc-go

	UnaryFirst  grpc.UnaryClientInterceptor // the outermost interceptors; nil for none
	StreamFirst grpc.StreamClientInterceptor
}

// ParseService parses a service config, in JSON.
func (o *Dial) ParseService(json string) (*call.ServiceConfig, error) {
	s, err := call.ParseServiceConfig(json, o.MaxAttempts)
	if err == nil && o.NoRetry {
		s.DisableRetry()
	}
	return s, err
}

// Proxied reports whether the environment may name a proxy for connections of grpc-go.
func (o *Dial) Proxied() bool {
	return !o.NoProxy && (os.Getenv("HTTPS_PROXY") != "" || os.Getenv("https_proxy") != "")
}

// GRPCKeepalive returns the keepalive for connections that grpc-go makes. If none is set it returns
// no option, because grpc-go would ping every 10 seconds, and ordinary gRPC servers end such
// connections.
func (o *Dial) GRPCKeepalive() []grpc.DialOption {
	if o.Socket.Keepalive.Time <= 0 {
		return nil
	}
	return []grpc.DialOption{grpc.WithKeepaliveParams(o.Socket.Keepalive)}
}

// A DialOption is an option of nearcall.NewClient.
type DialOption interface{ applyDial(*Dial) }

type setDial func(*Dial)

func (f setDial) applyDial(o *Dial) { f(o) }

// SetDial returns a DialOption that calls set. toGRPC are the options of grpc-go that do the
// same, for targets that go to grpc-go.
func SetDial(set func(*Dial), toGRPC ...grpc.DialOption) DialOption {
	return setDial(func(o *Dial) {
		set(o)
		o.ToGRPC = append(o.ToGRPC, toGRPC...)
	})
}

// WithDialer returns an option that makes d open the sessions of a connection, whatever its target.
func WithDialer(d link.Dialer) DialOption { return SetDial(func(o *Dial) { o.Dialer = d }) }

// NewDial returns the defaults with opts applied.
func NewDial(opts []DialOption) *Dial {
	o := &Dial{Timeout: 20 * time.Second, IdleTimeout: 30 * time.Minute, Memory: 128 << 20, MaxAttempts: call.DefaultMaxCallAttempts}
	for _, opt := range opts {
		if opt != nil {
			opt.applyDial(o)
		}
	}
	if o.ServiceConfig != nil {
		o.Service, o.Err = o.ParseService(*o.ServiceConfig)
	}
	if o.UnaryFirst != nil {
		o.Unary = append([]grpc.UnaryClientInterceptor{o.UnaryFirst}, o.Unary...)
	}
	if o.StreamFirst != nil {
		o.Stream = append([]grpc.StreamClientInterceptor{o.StreamFirst}, o.Stream...)
	}
	return o
}
