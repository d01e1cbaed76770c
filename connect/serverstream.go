package nearconnect

import (
	"cmp"
	"context"
	"io"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/nearcall/nearcall/internal/call/server"
	"github.com/nearcall/nearcall/internal/link"
)

// describe fills info for the call of ctx, the context of a handler of gRPC.
func (p *procedure) describe(ctx context.Context, info *connect.CallInfo) {
	info.Spec = p.spec
	var sent metadata.MD
	var subtype, encoding string
	remote := false
	if own := server.HandledBy(ctx); own != nil {
		profile := own.Profile()
		info.Protocol, subtype, encoding = ProtocolName, profile.ContentSubtype, profile.Encoding
		if sent = own.Sent(); !own.InProcess() {
			info.RequestHeader().Set("User-Agent", profile.UserAgent)
			remote = true
		}
	} else {
		sent, _ = metadata.FromIncomingContext(ctx)
		info.Protocol, subtype = connect.ProtocolNameGRPC, link.Subtype(first(sent["content-type"]))
		if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
			encoding = s.RecvCompress() // grpc-go keeps it out of the metadata
		}
		remote = true
	}
	fromMetadata(info.RequestHeader(), sent)
	if info.Codec = subtype; subtype == "" {
		info.Codec = connect.CodecNameProto
	}
	if info.RequestEncoding = encoding; encoding == "" {
		info.RequestEncoding = connect.CompressionNameIdentity
	}
	info.ResponseEncoding = info.RequestEncoding
	if remote {
		from, _ := peer.FromContext(ctx)
		info.PeerAddr = addressOf(from)
	}
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// serveUnary is the handler of a unary method of gRPC.
func (p *procedure) serveUnary(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	if interceptor == nil {
		s := &unaryServerStream{ctx: ctx, decode: decode}
		return s.serve(p)
	}
	request := p.request.New().Interface()
	var invalid error
	if err := guarded(p.name, func() error { invalid = decode(request); return nil }); err != nil {
		return nil, verdict(err)
	}
	if invalid != nil {
		return nil, invalid
	}
	info := &grpc.UnaryServerInfo{Server: p.server, FullMethod: p.name}
	return interceptor(ctx, request, info, func(ctx context.Context, request any) (any, error) {
		s := &unaryServerStream{ctx: ctx, decode: func(msg any) error { return copyMessage(msg, request) }}
		return s.serve(p)
	})
}

// copyMessage copies a request to the handler's message, because interceptors may keep the
// request.
func copyMessage(dst, src any) error {
	to, ok := dst.(proto.Message)
	from, also := src.(proto.Message)
	if !ok || !also || to.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
		return connect.Errorf(connect.CodeInternal, "the handler receives a %T, and the interceptors have passed on a %T", dst, src)
	}
	proto.Reset(to)
	proto.Merge(to, from)
	return nil
}

// A unaryServerStream is the handler's side of a unary call. It implements [connect.ServerStream].
type unaryServerStream struct {
	info   connect.CallInfo
	ctx    context.Context
	decode func(any) error // into the handler's request

	received bool
	reply    any // nil before Send
}

// serve runs the handler and returns gRPC's reply and error.
func (s *unaryServerStream) serve(p *procedure) (any, error) {
	p.describe(s.ctx, &s.info)
	err := p.call(s.ctx, &s.info, s)
	err = cmp.Or(err, s.pass(s.info.ResponseHeader(), grpc.SetHeader), s.pass(s.info.ResponseTrailer(), grpc.SetTrailer))
	switch {
	case err != nil:
		return nil, verdict(err)
	case s.reply == nil:
		return nil, verdict(connect.NewError(connect.CodeUnimplemented, "unary stream has no message"))
	}
	return s.reply, nil
}

// pass passes what the handler has set on to gRPC.
func (s *unaryServerStream) pass(h *connect.Header, set func(context.Context, metadata.MD) error) error {
	md, err := toMetadata(h)
	if md == nil {
		return err
	}
	if err := set(s.ctx, md); err != nil {
		return fromStatus(err)
	}
	return nil
}

func (s *unaryServerStream) Receive(msg any) error {
	if s.received {
		return io.EOF
	}
	s.received = true
	return handlerError(s.ctx, s.decode(msg))
}

// SendHeaders implements [connect.ServerStream]. As over HTTP, the header of a unary call goes out
// with its end.
func (s *unaryServerStream) SendHeaders() error { return nil }

func (s *unaryServerStream) Send(msg any) error {
	if s.reply != nil {
		return connect.NewError(connect.CodeInternal, "a unary call has one response, and Send was called before")
	}
	s.reply = msg
	return nil
}

// serveStream is the handler of a streaming method of gRPC.
func (p *procedure) serveStream(_ any, stream grpc.ServerStream) error {
	s := &serverStream{stream: stream, ctx: stream.Context()}
	p.describe(s.ctx, &s.info)
	if own := server.HandledBy(s.ctx); own != nil {
		own.SendOn()
	}
	err := p.call(s.ctx, &s.info, s)
	if failed := s.finish(); err == nil {
		err = failed
	}
	return verdict(err)
}

// A serverStream is the handler's side of a stream. It implements [connect.ServerStream].
type serverStream struct {
	info   connect.CallInfo
	stream grpc.ServerStream
	ctx    context.Context

	headerSent bool // or set, to be sent with a message or the end; used only by the goroutine that sends
}

func (s *serverStream) Receive(msg any) error { return handlerError(s.ctx, s.stream.RecvMsg(msg)) }
func (s *serverStream) SendHeaders() error    { return s.flushHeader(s.stream.SendHeader) }

func (s *serverStream) Send(msg any) error {
	if err := s.flushHeader(s.stream.SetHeader); err != nil {
		return err
	}
	return handlerError(s.ctx, s.stream.SendMsg(msg))
}

// flushHeader calls flush, once, with the header that the handler has set.
func (s *serverStream) flushHeader(flush func(metadata.MD) error) error {
	if s.headerSent {
		return nil
	}
	s.headerSent = true
	md, err := toMetadata(s.info.ResponseHeader())
	if err != nil {
		return err
	}
	return handlerError(s.ctx, flush(md))
}

// finish passes on the header and trailer that the handler has set and not sent.
func (s *serverStream) finish() error {
	err := s.flushHeader(s.stream.SetHeader)
	md, invalid := toMetadata(s.info.ResponseTrailer())
	if invalid != nil {
		return invalid
	}
	s.stream.SetTrailer(md)
	return err
}
