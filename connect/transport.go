package nearconnect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime/debug"
	"strings"

	"connectrpc.com/connect/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
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

// Codec returns c as a codec of gRPC. A client passes it to [NewTransport] with
// [google.golang.org/grpc.ForceCodecV2]. A server registers it with
// [google.golang.org/grpc/encoding.RegisterCodecV2], under its name; one for JSON is there already,
// but not for clients that speak gRPC over HTTP/2. c's methods get context.Background. A panic of c
// becomes an error, because gRPC does not recover panics when it encodes a reply.
func Codec(c connect.Codec) encoding.CodecV2 { return codec{c} }

type codec struct{ connect.Codec }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	var b bytes.Buffer
	if err := c.guarded(func() error { return c.MarshalWrite(context.Background(), &b, v) }); err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b.Bytes())}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r := data.Reader()
	defer r.Close()
	return c.guarded(func() error { return c.UnmarshalRead(context.Background(), r, v) })
}

func (c codec) guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			logger.Errorf("the codec %q panicked: %v\n%s", c.Name(), value, debug.Stack())
			err = errors.New("the codec panicked")
		}
	}()
	return f()
}

// Compressor returns c as a compressor of gRPC, with the same name. Both sides register it with
// [google.golang.org/grpc/encoding.RegisterCompressor], and a client selects it with
// [google.golang.org/grpc.UseCompressor]. gRPC has a compressor "gzip" already.
func Compressor(c connect.Compressor) encoding.Compressor { return compressor{c} }

type compressor struct{ connect.Compressor }

// Decompress implements [encoding.Compressor], whose reader has no Close.
func (c compressor) Decompress(r io.Reader) (io.Reader, error) {
	rc, err := c.Compressor.Decompress(r)
	if err != nil {
		return nil, err
	}
	return &untilEnd{rc: rc}, nil
}

// untilEnd reads from rc and closes it at its end. A reader that gRPC abandons, because a message
// is too large, is left to the garbage collector.
type untilEnd struct {
	rc  io.ReadCloser
	end error // not nil once rc is closed
}

func (u *untilEnd) Read(p []byte) (int, error) {
	if u.end != nil {
		return 0, u.end
	}
	n, err := u.rc.Read(p)
	if err != nil {
		u.end = err
		if failed := u.rc.Close(); failed != nil && err == io.EOF {
			u.end = failed
		}
	}
	return n, u.end
}
