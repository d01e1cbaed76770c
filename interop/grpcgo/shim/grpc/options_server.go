//lint:file-ignore SA1019 grpc-go's tests use options that are deprecated.

package grpc

import (
	"github.com/nearcall/nearcall"
	"github.com/nearcall/nearcall/interop/grpcgo/shim/near"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/tap"
)

// Server options that both libraries have under the same name.

var (
	InitialWindowSize          = server2(g.InitialWindowSize, nearcall.InitialWindowSize)
	InitialConnWindowSize      = server2(g.InitialConnWindowSize, nearcall.InitialConnWindowSize)
	KeepaliveParams            = server2(g.KeepaliveParams, nearcall.KeepaliveParams)
	KeepaliveEnforcementPolicy = server2(g.KeepaliveEnforcementPolicy, nearcall.KeepaliveEnforcementPolicy)
	ForceServerCodecV2         = server2(g.ForceServerCodecV2, nearcall.ForceServerCodecV2)
	MaxRecvMsgSize             = server2(g.MaxRecvMsgSize, nearcall.MaxRecvMsgSize)
	MaxSendMsgSize             = server2(g.MaxSendMsgSize, nearcall.MaxSendMsgSize)
	MaxConcurrentStreams       = server2(g.MaxConcurrentStreams, nearcall.MaxConcurrentStreams)
	Creds                      = server2(g.Creds, nearcall.Creds)
	UnaryInterceptor           = server2(g.UnaryInterceptor, nearcall.UnaryInterceptor)
	StreamInterceptor          = server2(g.StreamInterceptor, nearcall.StreamInterceptor)
	StatsHandler               = server2(g.StatsHandler, nearcall.StatsHandler)
	UnknownServiceHandler      = server2(g.UnknownServiceHandler, nearcall.UnknownServiceHandler)
	ConnectionTimeout          = server2(g.ConnectionTimeout, nearcall.ConnectionTimeout)
	MaxHeaderListSize          = server2(g.MaxHeaderListSize, nearcall.MaxHeaderListSize)
	WaitForHandlers            = server2(g.WaitForHandlers, nearcall.WaitForHandlers)
	ChainUnaryInterceptor      = serverN(g.ChainUnaryInterceptor, nearcall.ChainUnaryInterceptor)
	ChainStreamInterceptor     = serverN(g.ChainStreamInterceptor, nearcall.ChainStreamInterceptor)
)

// Server options that nearcall has under another name.

var (
	StaticStreamWindowSize = server2(g.StaticStreamWindowSize, nearcall.InitialWindowSize)
	StaticConnWindowSize   = server2(g.StaticConnWindowSize, nearcall.InitialConnWindowSize)
	MaxMsgSize             = server2(g.MaxMsgSize, nearcall.MaxRecvMsgSize)
)

// Server options that apply to clients of grpc-go only: nearcall manages its buffers and
// workers itself, and compresses a reply with the compressor of its request.

var (
	SharedWriteBuffer = server1(g.SharedWriteBuffer)
	WriteBufferSize   = server1(g.WriteBufferSize)
	ReadBufferSize    = server1(g.ReadBufferSize)
	HeaderTableSize   = server1(g.HeaderTableSize)
	NumStreamWorkers  = server1(g.NumStreamWorkers)
	RPCCompressor     = server1(g.RPCCompressor)
	RPCDecompressor   = server1(g.RPCDecompressor)
)

// Server options that tests need for clients of nearcall, too, and that nearcall does not
// have.

func CustomCodec(c g.Codec) ServerOption {
	return missing("CustomCodec", g.CustomCodec(c))
}

func ForceServerCodec(c encoding.Codec) ServerOption {
	return missing("ForceServerCodec", g.ForceServerCodec(c))
}

// InTapHandle is nearcall's option for clients of nearcall.
func InTapHandle(h tap.ServerInHandle) ServerOption {
	if near.On == near.Ordinary {
		return onServer(g.InTapHandle(h))
	}
	return onServer(g.InTapHandle(h), nearcall.InTapHandle(h))
}
