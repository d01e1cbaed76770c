package nearconnect

import (
	"context"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// NewTransport returns a transport for [connect.NewClient] that makes its calls with conn, usually
// a *nearcall.ClientConn. opts apply to all calls. Useful ones are:
//
//   - [grpc.ForceCodecV2] with [Codec], for another encoding than protobuf's
//   - [grpc.UseCompressor], with the name "gzip" or that of a registered [Compressor]
//   - [grpc.MaxCallRecvMsgSize], by default 4 MiB as in Connect, and [grpc.MaxCallSendMsgSize]
//   - [grpc.WaitForReady]
//
// A unary call is made by Receive. Its request must not be changed before, and Close does not
// interrupt a handler that runs on the goroutine of its caller: see nearcall.HandlerPlacement.
func NewTransport(conn grpc.ClientConnInterface, opts ...grpc.CallOption) connect.Transport {
	t := &transport{conn: conn, opts: opts, protocol: connect.ProtocolNameGRPC, codec: connect.CodecNameProto, encoding: connect.CompressionNameIdentity}
	if c, ok := conn.(interface{ Target() string }); ok {
		if scheme, _, _ := strings.Cut(c.Target(), ":"); strings.EqualFold(scheme, "inproc") {
			t.inproc = true
		}
	}
	if _, ok := conn.(*grpc.ClientConn); !ok {
		t.protocol = ProtocolName
	}
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.ForceCodecV2CallOption:
			t.codec = o.CodecV2.Name()
		case grpc.ContentSubtypeCallOption:
			t.codec = o.ContentSubtype
		case grpc.CompressorCallOption:
			t.encoding = o.CompressorType
		}
	}
	return t
}

// A transport is a [connect.Transport].
type transport struct {
	conn   grpc.ClientConnInterface
	opts   []grpc.CallOption
	inproc bool // conn is in process: a call whose context cannot be cancelled is a function call

	protocol, codec, encoding string // for CallInfo
}

// NewClientStream implements [connect.Transport]. It neither connects nor sends anything.
func (t *transport) NewClientStream(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
	c := clientCall{transport: t, ctx: ctx, procedure: spec.Procedure}
	if info, ok := connect.CallInfoForClientContext(ctx); ok {
		info.Spec, info.Protocol, info.Codec, info.RequestEncoding = spec, t.protocol, t.codec, t.encoding
		c.info = info
	}
	if spec.StreamType != connect.StreamTypeUnary {
		s := &clientStream{clientCall: c}
		s.desc = grpc.StreamDesc{
			StreamName:    spec.Procedure[strings.LastIndexByte(spec.Procedure, '/')+1:],
			ClientStreams: spec.StreamType&connect.StreamTypeClient != 0,
			ServerStreams: spec.StreamType&connect.StreamTypeServer != 0,
		}
		s.within, s.cancel = context.WithCancel(ctx)
		return s, nil
	}
	s := &unaryStream{clientCall: c}
	s.within = ctx
	if !t.inproc || ctx.Done() != nil {
		s.within, s.cancel = context.WithCancel(ctx)
	}
	return s, nil
}

// A clientCall is the state of a call that streams of both kinds share.
type clientCall struct {
	transport *transport
	procedure string
	info      *connect.CallInfo // nil if nobody asks
	ctx       context.Context   // the caller's

	// The context of gRPC's call. cancel ends it. It is nil if Close cannot end the call.
	within context.Context
	cancel context.CancelFunc
}

// start returns the context for gRPC's call, with the metadata that the caller has set.
func (c *clientCall) start() (context.Context, error) {
	if c.info == nil {
		return c.within, nil
	}
	return withHeader(c.within, c.info.RequestHeader())
}

// release ends the context of gRPC's call.
func (c *clientCall) release() {
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *clientCall) setHeader(md metadata.MD) {
	if c.info != nil && len(md) > 0 {
		fromMetadata(c.info.ResponseHeader(), md)
	}
}

func (c *clientCall) setTrailer(md metadata.MD) {
	if c.info != nil && len(md) > 0 {
		fromMetadata(c.info.ResponseTrailer(), md)
	}
}

func (c *clientCall) setPeer(p *peer.Peer) {
	if c.info != nil {
		c.info.PeerAddr = addressOf(p)
	}
}

// addressOf returns the address of a peer in a network, and "" for others.
func addressOf(p *peer.Peer) string {
	if p == nil || p.Addr == nil || p.Addr.Network() == "inproc" {
		return ""
	}
	return p.Addr.String()
}
