package nearcall

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/durations"
	"github.com/nearcall/nearcall/internal/grpcserver"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/transport/sock"
)

// http2Headers is the default of MaxHeaderListSize for ordinary gRPC clients, in bytes. It is below
// grpc-go's default of 16 MiB: with HPACK, a client can fill 16 MiB by sending 4 kB for each call.
const http2Headers = 64 << 10

// takeGRPC serves the connection of an ordinary gRPC client. If the server is stopped, takeGRPC
// closes the connection without an error, so the client tries again.
func (s *Server) takeGRPC(c sock.Handover) {
	if s.takesCalls() {
		s.grpc.Take(c.Conn, c.First, c.Auth, c.Deadline)
	} else {
		_ = c.Conn.Close()
	}
}

// grpcConfig returns the configuration of the server for ordinary gRPC clients: the same
// services, interceptors, stats handlers and limits. It is called when no more services are registered.
func (s *Server) grpcConfig() grpcserver.Config {
	o := s.opts
	c := grpcserver.Config{Register: s.core.RegisterWith, Loop: s.core.LoopOf, Unary: o.Unary}
	c.Stream = append([]grpc.StreamServerInterceptor{s.acceptPrepared}, o.Stream...)
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.MaxRecv),
		grpc.MaxSendMsgSize(o.MaxSend),
		grpc.WaitForHandlers(o.ServerConfig.WaitForHandlers),
		grpc.KeepaliveParams(ages(o.Socket.ServerKeepalive)),
		grpc.KeepaliveEnforcementPolicy(o.Socket.Enforcement),
	}
	for _, h := range o.Stats {
		opts = append(opts, grpc.StatsHandler(h))
	}
	if o.Tap != nil {
		opts = append(opts, grpc.InTapHandle(o.Tap))
		c.Tap = func(ctx context.Context, info *tap.Info) (context.Context, *status.Status) {
			return call.AskTap(ctx, o.Tap, info)
		}
	}
	if n := o.Socket.MaxStreams; n > 0 {
		opts = append(opts, grpc.MaxConcurrentStreams(n))
	}
	if n := o.Window; n > 0 {
		opts = append(opts, grpc.InitialWindowSize(int32(n)))
	}
	if n := o.Socket.ConnWindow; n > 0 {
		opts = append(opts, grpc.InitialConnWindowSize(int32(n)))
	}
	opts = append(opts, grpc.MaxHeaderListSize(uint32(cmp.Or(o.Socket.MaxHeaderBytes, http2Headers))))
	if d := o.Socket.Handshake; d != 0 {
		opts = append(opts, grpc.ConnectionTimeout(d))
	}
	if h := s.core.Unregistered(); h != nil {
		opts = append(opts, grpc.UnknownServiceHandler(h))
	}
	switch {
	case o.ForwardCodec != nil:
		opts = append(opts, grpc.ForceServerCodecV2(forwardingCodec{o.ForwardCodec, o.ForcedCodec}))
	case o.ForcedCodec != nil:
		opts = append(opts, grpc.ForceServerCodecV2(o.ForcedCodec))
	}
	c.Options = append(opts, o.GRPC...)
	return c
}

// ages returns p with ages that grpc-go can take. At a MaxConnectionAge that is negative or shorter
// than 10 ns it panics, and adding its jitter to a very long one overflows.
func ages(p keepalive.ServerParameters) keepalive.ServerParameters {
	p.MaxConnectionIdle = max(p.MaxConnectionIdle, 0)
	switch age := &p.MaxConnectionAge; {
	case *age <= 0:
		*age = 0 // none
	case *age > durations.Longest/2:
		*age = durations.Longest
	default:
		*age = max(*age, 10)
	}
	return p
}

// A forwardingCodec is the codec of a server that forwards some calls.
// It implements [encoding.CodecV2].
type forwardingCodec struct {
	forwarded options.ForwardCodec
	forced    encoding.CodecV2 // for the services that the server does not forward; nil for protobuf
}

func (c forwardingCodec) codecOf(v any) encoding.CodecV2 {
	switch {
	case c.forwarded.Encodes(v):
		return c.forwarded
	case c.forced != nil:
		return c.forced
	}
	return encoding.GetCodecV2("proto")
}

func (c forwardingCodec) Marshal(v any) (mem.BufferSlice, error) { return c.codecOf(v).Marshal(v) }

func (c forwardingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return c.codecOf(v).Unmarshal(data, v)
}

func (c forwardingCodec) Name() string { return c.forwarded.Name() }

// acceptPrepared is an interceptor that lets handlers of ordinary gRPC clients' calls send
// a [PreparedMsg], and encode one for clients of both kinds.
func (s *Server) acceptPrepared(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &preparedStream{ss, s.core.WithMixed(ss.Context())})
}

type preparedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s *preparedStream) Context() context.Context { return s.ctx }

// SendMsg implements [grpc.ServerStream].
func (s *preparedStream) SendMsg(m any) error { return s.ServerStream.SendMsg(forGRPC(m)) }
