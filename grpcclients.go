package nearcall

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nearcall/nearcall/internal/grpcserver"
	"github.com/nearcall/nearcall/internal/options"
	"github.com/nearcall/nearcall/internal/sniff"
)

// takeGRPC serves the connection of an ordinary gRPC client. If the server is stopped, takeGRPC
// closes the connection without an error, so the client tries again.
func (s *Server) takeGRPC(c sniff.Handover) {
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
	c := grpcserver.Config{Register: s.core.RegisterWith, Loop: s.core.LoopOf, Options: o, Stream: s.acceptPrepared}
	if s.core.Taps() {
		c.Tap = s.core.AskTap
	}
	if h := s.core.Unregistered(); h != nil {
		c.More = append(c.More, grpc.UnknownServiceHandler(h))
	}
	switch {
	case o.ForwardTo != nil:
		c.More = append(c.More, grpc.ForceServerCodecV2(forwardingCodec{o.ForwardTo.Codec, o.ForcedCodec}))
	case o.ForcedCodec != nil:
		c.More = append(c.More, grpc.ForceServerCodecV2(o.ForcedCodec))
	}
	return c
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
