package interop

import (
	"context"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/loop"
)

// Config is what a case needs of its server and client. Each environment turns it into its
// own options. Zero values mean the default.
type Config struct {
	Service  *Service
	Register []func(grpc.ServiceRegistrar)

	UnaryServer   []grpc.UnaryServerInterceptor // outermost first
	StreamServer  []grpc.StreamServerInterceptor
	ServerStats   []stats.Handler
	ServerTap     tap.ServerInHandle
	ServerMaxRecv int
	ServerMaxSend int
	ServerCodec   encoding.CodecV2
	ServerEnds    keepalive.ServerParameters       // when connections end
	ServerCreds   credentials.TransportCredentials // set by environments that need credentials
	Loop          *loop.Loop                       // set by environments whose handlers run on a loop
	Unknown       grpc.StreamHandler
	Forward       *grpc.Server // set by environments that forward calls to it

	UnaryClient   []grpc.UnaryClientInterceptor
	StreamClient  []grpc.StreamClientInterceptor
	ClientStats   []stats.Handler
	CallOptions   []grpc.CallOption
	PerRPC        []credentials.PerRPCCredentials
	UserAgent     string
	Authority     string
	ServiceConfig string

	// Silence, once it is set, drops what clients send. Clients in process, over shared memory and of
	// the proxy's server ignore it.
	Silence *atomic.Bool

	DisableRetry    bool
	MaxCallAttempts *int

	// Private asks for a connection that counts as private. On grpc-go that is a unix socket with
	// local credentials; nearcall's local paths always are.
	Private bool

	// Addressed asks for a connection whose addresses have ports. On grpc-go that is TCP.
	Addressed bool
}

// A silentConn drops what is written while silence is set.
type silentConn struct {
	net.Conn
	silence *atomic.Bool
}

func (c silentConn) Write(b []byte) (int, error) {
	if c.silence.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// dial opens a client's connection to an address of gRPC's.
func (cfg *Config) dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	return silentConn{c, cfg.Silence}, err
}

// oracle is the environment that all others are compared with.
var oracle = Env{Name: "grpc-go", Start: startGRPC}

// environments are all environments that cases run on. They include the oracle, since a
// case that is not deterministic there proves nothing.
var environments = append([]Env{
	oracle,
	{Name: "grpc-go-background", Background: true, Start: startGRPC},
}, nearcallEnvironments...)
