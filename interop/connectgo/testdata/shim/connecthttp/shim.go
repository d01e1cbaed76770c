// Package connecthttp replaces Connect's package in its tests.
package connecthttp

import (
	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"connectrpc.com/connect/v2/nearcallshim/memhttptest"
	"connectrpc.com/connect/v2/nearcallshim/near"
	"github.com/nearcall/nearcall"
	nearconnect "github.com/nearcall/nearcall/connect"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"
)

type (
	ClientInfo = connecthttp.ClientInfo
	ServerInfo = connecthttp.ServerInfo
	HTTPClient = connecthttp.HTTPClient
	ServeMux   = connecthttp.ServeMux
)

var (
	ClientInfoForContext = connecthttp.ClientInfoForContext
	ServerInfoForContext = connecthttp.ServerInfoForContext
	NewNotModifiedError  = connecthttp.NewNotModifiedError
	IsNotModifiedError   = connecthttp.IsNotModifiedError
)

// NewErrorWriter is Connect's.
func NewErrorWriter(opts ...Option) *connecthttp.ErrorWriter {
	return connecthttp.NewErrorWriter(theirs(opts)...)
}

type settings struct {
	client []grpc.CallOption
	server []nearcall.ServerOption
	codecs []connect.Codec
	send   string
}

// An Option is Connect's option, and what it means here; nil for nothing.
type Option interface {
	their() connecthttp.Option
	set(*settings)
}

type option struct {
	connecthttp.Option
	here func(*settings)
}

func (o option) their() connecthttp.Option { return o.Option }

func (o option) set(s *settings) {
	if o.here != nil {
		o.here(s)
	}
}

func theirs(opts []Option) []connecthttp.Option {
	all := make([]connecthttp.Option, len(opts))
	for i, o := range opts {
		all[i] = o.their()
	}
	return all
}

func WithGRPC() Option    { return option{Option: connecthttp.WithGRPC()} }
func WithGRPCWeb() Option { return option{Option: connecthttp.WithGRPCWeb()} }
func WithHTTPGet() Option { return option{Option: connecthttp.WithHTTPGet()} }
func WithRequireConnectProtocolHeader() Option {
	return option{Option: connecthttp.WithRequireConnectProtocolHeader()}
}
func WithCompressMinBytes(n int) Option { return option{Option: connecthttp.WithCompressMinBytes(n)} }
func WithHTTPGetMaxURLSize(n int, f bool) Option {
	return option{Option: connecthttp.WithHTTPGetMaxURLSize(n, f)}
}

func WithCompressors(c ...connect.Compressor) Option {
	return option{Option: connecthttp.WithCompressors(c...)}
}

func WithProtoJSON() Option { return WithSendCodec(connect.CodecNameJSON) }

func WithSendCodec(name string) Option {
	return option{connecthttp.WithSendCodec(name), func(s *settings) { s.send = name }}
}

func WithCodecs(c ...connect.Codec) Option {
	return option{connecthttp.WithCodecs(c...), func(s *settings) { s.codecs = c }}
}

func WithSendGzip() Option { return WithSendCompression(connect.CompressionNameGzip) }

func WithSendCompression(name string) Option {
	return option{connecthttp.WithSendCompression(name), func(s *settings) {
		s.client = append(s.client, grpc.UseCompressor(name))
	}}
}

func WithReadMaxBytes(n int) Option {
	return option{connecthttp.WithReadMaxBytes(n), func(s *settings) {
		limit := n
		if limit <= 0 {
			limit = 1 << 30
		}
		s.client = append(s.client, grpc.MaxCallRecvMsgSize(limit))
		s.server = append(s.server, nearcall.MaxRecvMsgSize(limit))
	}}
}

func WithSendMaxBytes(n int) Option {
	return option{connecthttp.WithSendMaxBytes(n), func(s *settings) {
		limit := n
		if limit <= 0 {
			limit = 1 << 30
		}
		s.client = append(s.client, grpc.MaxCallSendMsgSize(limit))
		s.server = append(s.server, nearcall.MaxSendMsgSize(limit))
	}}
}

// WithConditionalOptions leaves what depends on the procedure to Connect.
func WithConditionalOptions(f func(connect.Spec) []Option) Option {
	return option{Option: connecthttp.WithConditionalOptions(func(s connect.Spec) []connecthttp.Option { return theirs(f(s)) })}
}

// Mount mounts server over HTTP, and notes it for nearcall.
func Mount(mux ServeMux, server *connect.Server, opts ...Option) {
	connecthttp.Mount(mux, server, theirs(opts)...)
	var s settings
	for _, o := range opts {
		o.set(&s)
	}
	memhttptest.Mount(mux, &memhttptest.Mounted{Server: server, Options: s.server})
}

// NewTransport returns a transport of nearcall if client is that of a test server, and otherwise Connect's.
func NewTransport(client HTTPClient, url string, opts ...Option) connect.Transport {
	conn := memhttptest.ConnOf(client)
	if conn == nil {
		return connecthttp.NewTransport(client, url, theirs(opts)...)
	}
	near.Say()
	s := settings{codecs: []connect.Codec{connectproto.NewBinaryCodec(), connectproto.NewJSONCodec()}}
	for _, o := range opts {
		o.set(&s)
	}
	if s.send == "" && len(s.codecs) > 0 {
		s.send = s.codecs[0].Name()
	}
	for _, c := range s.codecs {
		if _, binary := c.(*connectproto.BinaryCodec); c.Name() == s.send && !binary {
			s.client = append(s.client, grpc.ForceCodecV2(nearconnect.Codec(c)))
		}
	}
	return nearconnect.NewTransport(conn, s.client...)
}
