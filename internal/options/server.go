package options

import (
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/link"
)

// Server holds the options of a server. It is immutable once [NewServer] has returned it.
type Server struct {
	Connections
	PeerOptions []DialOption // of connections to clients

	ServerUnaryChain  []grpc.UnaryServerInterceptor // the first one outermost
	ServerStreamChain []grpc.StreamServerInterceptor
	UnaryFirst        grpc.UnaryServerInterceptor // before all others; nil for none
	StreamFirst       grpc.StreamServerInterceptor
	ServerStats       []stats.Handler
	TapHandle         tap.ServerInHandle // may be nil

	MaxRecv, MaxSend int // limits of messages, in bytes
	UnknownServices  grpc.StreamHandler
	ForwardTo        *Forward            // may be nil
	ForcedCodec      encoding.CodecV2    // overrides the content-subtype's; may be nil
	PlaceHandlers    Placement           // of handlers on goroutines
	AwaitHandlers    bool                // by Stop
	ServerImmutable  bool                // messages are shared with clients that share theirs
	TakesGRPC        bool                // ordinary gRPC clients
	GRPCOptions      []grpc.ServerOption // of the grpc.Server for them, as the user passed them
	TakesWeb         bool                // web clients
	PageOrigins      []string            // of web pages that may make calls

	AcceptSession func(link.Session) link.Acceptor // makes the acceptor of a session; nil for the server's default
}

// Placement selects the goroutine for a unary handler that could run on its caller's. Package
// nearcall says more.
type Placement int

// The placements.
const (
	Auto Placement = iota
	Inline
	OnWorkers
)

// A Forward forwards the calls to services that a server does not have, as bytes.
type Forward struct {
	// Handler forwards a call. It sends and receives the message type that Codec supports.
	// clientStreams is false if the caller must send exactly one message; the server has not
	// checked that.
	Handler func(s grpc.ServerStream, clientStreams bool) error
	Codec   ForwardCodec

	// Services returns the services to which calls are forwarded. It is called for the first
	// call, and by the server's GetServiceInfo.
	Services func() map[string]grpc.ServiceInfo
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

// NewServer returns the defaults with opts applied.
func NewServer(opts []ServerOption) *Server {
	o := &Server{
		MaxRecv: 4 << 20, MaxSend: math.MaxInt32,
		TakesGRPC: true, TakesWeb: true,
	}
	for _, opt := range opts {
		if opt != nil {
			opt.applyServer(o)
		}
	}
	o.completeServer()
	if o.UnaryFirst != nil {
		o.ServerUnaryChain = append([]grpc.UnaryServerInterceptor{o.UnaryFirst}, o.ServerUnaryChain...)
	}
	if o.StreamFirst != nil {
		o.ServerStreamChain = append([]grpc.StreamServerInterceptor{o.StreamFirst}, o.ServerStreamChain...)
	}
	return o
}

// HasGRPCOptions reports whether the program has set options that apply only to calls of ordinary
// gRPC clients, such as a tap handle.
func (o *Server) HasGRPCOptions() bool { return len(o.GRPCOptions) > 0 }

// ForGRPC returns the options of the grpc.Server for ordinary gRPC clients, without interceptors and
// GRPCOptions.
func (o *Server) ForGRPC() []grpc.ServerOption {
	opts := append(o.forGRPC(), grpc.MaxRecvMsgSize(o.MaxRecv), grpc.MaxSendMsgSize(o.MaxSend), grpc.WaitForHandlers(o.AwaitHandlers))
	for _, h := range o.ServerStats {
		opts = append(opts, grpc.StatsHandler(h))
	}
	if o.TapHandle != nil {
		opts = append(opts, grpc.InTapHandle(o.TapHandle))
	}
	return opts
}
