package interop

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/stats"

	"github.com/nearcall/nearcall/loop"
)

// Config says what a case wants of its server and client. Each environment turns it into options of
// its own. Zero values mean the default.
type Config struct {
	Service  *Service
	Register []func(grpc.ServiceRegistrar)

	UnaryServer   []grpc.UnaryServerInterceptor // outermost first
	StreamServer  []grpc.StreamServerInterceptor
	ServerStats   []stats.Handler
	ServerMaxRecv int
	ServerMaxSend int
	ServerCodec   encoding.CodecV2
	ServerCreds   credentials.TransportCredentials // set by environments that need some
	Loop          *loop.Loop                       // set by environments whose handlers run on one
	Unknown       grpc.StreamHandler
	Forward       *grpc.Server // set by environments that pass calls on to it

	UnaryClient   []grpc.UnaryClientInterceptor
	StreamClient  []grpc.StreamClientInterceptor
	ClientStats   []stats.Handler
	CallOptions   []grpc.CallOption
	PerRPC        []credentials.PerRPCCredentials
	UserAgent     string
	Authority     string
	ServiceConfig string

	DisableRetry    bool
	MaxCallAttempts *int

	// Private asks for a connection that counts as private. On grpc-go that is a unix socket with
	// local credentials; nearcall's local paths always are.
	Private bool

	// Addressed asks for a connection whose addresses have ports. On grpc-go that is TCP.
	Addressed bool
}

// oracle is the environment that the others are compared with.
var oracle = Env{Name: "grpc-go", Start: startGRPC}

// environments are all that every case runs on. The oracle is among them: a case that is not
// deterministic there says nothing.
var environments = append([]Env{
	oracle,
	{Name: "grpc-go-background", Background: true, Start: startGRPC},
}, nearcallEnvironments...)
