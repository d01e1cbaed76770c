//lint:file-ignore SA1019 grpc-go's tests use options that are deprecated.

package grpc

import (
	"time"

	"github.com/nearcall/nearcall"
	g "google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
)

// Server options that both libraries have under the same name.

func InitialWindowSize(n int32) ServerOption {
	return onServer(g.InitialWindowSize(n), nearcall.InitialWindowSize(n))
}

func InitialConnWindowSize(n int32) ServerOption {
	return onServer(g.InitialConnWindowSize(n), nearcall.InitialConnWindowSize(n))
}

func KeepaliveParams(p keepalive.ServerParameters) ServerOption {
	return onServer(g.KeepaliveParams(p), nearcall.KeepaliveParams(p))
}

func KeepaliveEnforcementPolicy(p keepalive.EnforcementPolicy) ServerOption {
	return onServer(g.KeepaliveEnforcementPolicy(p), nearcall.KeepaliveEnforcementPolicy(p))
}

func ForceServerCodecV2(c encoding.CodecV2) ServerOption {
	return onServer(g.ForceServerCodecV2(c), nearcall.ForceServerCodecV2(c))
}

func MaxRecvMsgSize(n int) ServerOption {
	return onServer(g.MaxRecvMsgSize(n), nearcall.MaxRecvMsgSize(n))
}

func MaxSendMsgSize(n int) ServerOption {
	return onServer(g.MaxSendMsgSize(n), nearcall.MaxSendMsgSize(n))
}

func MaxConcurrentStreams(n uint32) ServerOption {
	return onServer(g.MaxConcurrentStreams(n), nearcall.MaxConcurrentStreams(n))
}

func Creds(c credentials.TransportCredentials) ServerOption {
	return onServer(g.Creds(c), nearcall.Creds(c))
}

func UnaryInterceptor(i g.UnaryServerInterceptor) ServerOption {
	return onServer(g.UnaryInterceptor(i), nearcall.UnaryInterceptor(i))
}

func ChainUnaryInterceptor(is ...g.UnaryServerInterceptor) ServerOption {
	return onServer(g.ChainUnaryInterceptor(is...), nearcall.ChainUnaryInterceptor(is...))
}

func StreamInterceptor(i g.StreamServerInterceptor) ServerOption {
	return onServer(g.StreamInterceptor(i), nearcall.StreamInterceptor(i))
}

func ChainStreamInterceptor(is ...g.StreamServerInterceptor) ServerOption {
	return onServer(g.ChainStreamInterceptor(is...), nearcall.ChainStreamInterceptor(is...))
}

func StatsHandler(h stats.Handler) ServerOption {
	return onServer(g.StatsHandler(h), nearcall.StatsHandler(h))
}

func UnknownServiceHandler(h g.StreamHandler) ServerOption {
	return onServer(g.UnknownServiceHandler(h), nearcall.UnknownServiceHandler(h))
}

func ConnectionTimeout(d time.Duration) ServerOption {
	return onServer(g.ConnectionTimeout(d), nearcall.ConnectionTimeout(d))
}

func MaxHeaderListSize(n uint32) ServerOption {
	return onServer(g.MaxHeaderListSize(n), nearcall.MaxHeaderListSize(n))
}

func WaitForHandlers(wait bool) ServerOption {
	return onServer(g.WaitForHandlers(wait), nearcall.WaitForHandlers(wait))
}

// Server options that nearcall has under another name.

func StaticStreamWindowSize(n int32) ServerOption {
	return onServer(g.StaticStreamWindowSize(n), nearcall.InitialWindowSize(n))
}

func StaticConnWindowSize(n int32) ServerOption {
	return onServer(g.StaticConnWindowSize(n), nearcall.InitialConnWindowSize(n))
}

func MaxMsgSize(n int) ServerOption {
	return onServer(g.MaxMsgSize(n), nearcall.MaxRecvMsgSize(n))
}

// Server options that apply to clients of grpc-go only: nearcall manages its buffers and
// workers itself, and compresses a reply with the compressor of its request.

func SharedWriteBuffer(share bool) ServerOption {
	return onServer(g.SharedWriteBuffer(share))
}

func WriteBufferSize(n int) ServerOption {
	return onServer(g.WriteBufferSize(n))
}

func ReadBufferSize(n int) ServerOption {
	return onServer(g.ReadBufferSize(n))
}

func HeaderTableSize(n uint32) ServerOption {
	return onServer(g.HeaderTableSize(n))
}

func NumStreamWorkers(n uint32) ServerOption {
	return onServer(g.NumStreamWorkers(n))
}

func RPCCompressor(c g.Compressor) ServerOption {
	return onServer(g.RPCCompressor(c))
}

func RPCDecompressor(d g.Decompressor) ServerOption {
	return onServer(g.RPCDecompressor(d))
}

// Server options that tests need for clients of nearcall, too, and that nearcall does not
// have.

func CustomCodec(c g.Codec) ServerOption {
	return missing("CustomCodec", g.CustomCodec(c))
}

func ForceServerCodec(c encoding.Codec) ServerOption {
	return missing("ForceServerCodec", g.ForceServerCodec(c))
}
