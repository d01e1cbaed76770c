package nearcall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/call"
	"github.com/nearcall/nearcall/internal/call/server"
)

// SetSendCompressor sets the compressor of the messages that a handler sends. It
// replaces [grpc.SetSendCompressor], which works in handlers of grpc-go only. ctx is
// the handler's context. By default replies are compressed like the request.
//
// The compressor must be registered with package encoding and advertised by the client: see
// [ClientSupportedCompressors]. The name "identity" turns compression off. SetSendCompressor must
// be called before the header is sent, and not concurrently with SendHeader or SendMsg.
//
// If ctx belongs to a call of grpc-go, SetSendCompressor calls grpc.SetSendCompressor, so a
// service can be registered with servers of both kinds. In process the name is checked and stats
// handlers see it, but nothing is compressed.
func SetSendCompressor(ctx context.Context, name string) error {
	if c := server.HandledBy(ctx); c != nil {
		return c.SetSendCompressor(name)
	}
	return grpc.SetSendCompressor(ctx, name)
}

// ClientSupportedCompressors returns the names of the compressors that the client of a
// call advertised. It replaces [grpc.ClientSupportedCompressors], which works in
// handlers of grpc-go only. ctx is the context of a handler of nearcall or of grpc-go.
func ClientSupportedCompressors(ctx context.Context) ([]string, error) {
	if c := server.HandledBy(ctx); c != nil {
		return c.ClientSupportedCompressors(), nil
	}
	return grpc.ClientSupportedCompressors(ctx)
}

type prepared = call.Prepared

// A PreparedMsg is a message that is encoded once and sent on many streams. It replaces
// [grpc.PreparedMsg], which works with streams of grpc-go only.
//
// Pass it to SendMsg of streams that use the same codec as the stream it was encoded for. It can be
// sent on any number of streams concurrently. Over sockets it is also compressed once, for streams
// with the same compressor. In process it is decoded again for each stream. A message that was
// encoded for another kind of stream is also decoded again when it is sent on a stream of an
// ordinary gRPC client.
type PreparedMsg struct{ prepared }

// Encode encodes msg with the codec and the compressor of s. msg can be modified afterwards. Encode
// must not be called while p is being sent. Its errors are status errors.
//
// If s is a stream of grpc-go, p can be sent on streams of grpc-go only: with SendMsg on streams of
// a [ClientConn] whose target is grpc:TARGET, and with [PreparedMsg.Send] on streams of a
// grpc.Server. This does not apply to a [Server]'s streams with ordinary gRPC clients: they accept
// what was encoded for nearcall's own clients, and vice versa.
//
//lint:ignore SA1019 grpc.PreparedMsg takes it, too
func (p *PreparedMsg) Encode(s grpc.Stream, msg any) error { return p.prepared.Encode(s, msg) }

// Send sends p on s. It does the same as s.SendMsg(p), but also works on streams of grpc-go.
//
//lint:ignore SA1019 Encode takes it, too
func (p *PreparedMsg) Send(s grpc.Stream) error {
	var to call.Stream = s
	if call.IsStream(to) {
		return to.SendMsg(p)
	}
	return to.SendMsg(forGRPC(p))
}

// forGRPC returns m or, if m is a *PreparedMsg, the message that a stream of grpc-go accepts in
// its place.
func forGRPC(m any) any {
	if p, ok := m.(*PreparedMsg); ok {
		if g := call.PreparedForGRPC(&p.prepared); g != nil {
			return g
		}
	}
	return m
}

// A preparing makes calls with grpc-go that accept a [PreparedMsg]. It implements
// [grpc.ClientConnInterface].
type preparing struct{ grpc.ClientConnInterface }

func (p preparing) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return p.ClientConnInterface.Invoke(ctx, method, forGRPC(args), reply, opts...)
}

func (p preparing) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := p.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return remoteStream{s}, nil
}

// A remoteStream is a stream of grpc-go that accepts a [PreparedMsg].
type remoteStream struct{ grpc.ClientStream }

func (s remoteStream) SendMsg(m any) error { return s.ClientStream.SendMsg(forGRPC(m)) }
