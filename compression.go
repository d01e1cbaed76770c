package nearcall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nearcall/nearcall/internal/call"
)

// SetSendCompressor sets the compressor of what a handler sends, as
// [grpc.SetSendCompressor] does, which knows handlers of grpc-go only. ctx is the
// handler's context. It has to be called before the header is sent. The compressor
// has to be registered with package encoding, and advertised by the client; the name
// identity turns compression off. By default messages are compressed as the
// request's are.
//
// Where ctx is that of an ordinary gRPC call it calls grpc.SetSendCompressor, so that
// a service may be registered with servers of both kinds. Within the process nothing
// is compressed: names are checked, and stats handlers are told of them, but that is all.
//
// It must not be called at the same time as SendHeader or SendMsg.
func SetSendCompressor(ctx context.Context, name string) error {
	if c := call.HandledBy(ctx); c != nil {
		return c.SetSendCompressor(name)
	}
	return grpc.SetSendCompressor(ctx, name)
}

// ClientSupportedCompressors returns the names of the compressors that the client of
// a call has advertised, as [grpc.ClientSupportedCompressors] does, which knows handlers
// of grpc-go only. ctx is the context of a handler, of nearcall's or of grpc-go's.
func ClientSupportedCompressors(ctx context.Context) ([]string, error) {
	if c := call.HandledBy(ctx); c != nil {
		return c.ClientSupportedCompressors(), nil
	}
	return grpc.ClientSupportedCompressors(ctx)
}

type prepared = call.Prepared

// A PreparedMsg is a message that is encoded once, and sent on many streams. It
// stands in for [grpc.PreparedMsg], which knows streams of grpc-go only.
//
// Give it to SendMsg of streams that have the codec of the one that it was encoded for,
// any number of them at a time. Over sockets it is compressed once as well, for streams
// with the same compressor. Each stream within the process decodes it again.
type PreparedMsg struct{ prepared }

// Encode encodes msg, which may change afterwards, with the codec and the compressor of
// s. It must not be called while p is sent. Its errors are status errors.
//
// Where s is a stream of grpc-go, so are those that p can be sent on: streams of a
// [ClientConn] whose target is grpc-go's take it by SendMsg, and streams of a
// grpc.Server by [PreparedMsg.Send].
//
//lint:ignore SA1019 grpc.PreparedMsg takes it, too
func (p *PreparedMsg) Encode(s grpc.Stream, msg any) error { return p.prepared.Encode(s, msg) }

// Send sends p on s. It does what s.SendMsg(p) does, on streams of grpc-go as well.
//
//lint:ignore SA1019 Encode takes it, too
func (p *PreparedMsg) Send(s grpc.Stream) error { return s.SendMsg(forGRPC(p)) }

// forGRPC returns what a stream of grpc-go takes in place of m, if m is a message that
// was prepared for one, and m otherwise.
func forGRPC(m any) any {
	if p, ok := m.(*PreparedMsg); ok {
		if g := p.GRPC(); g != nil {
			return g
		}
	}
	return m
}

// A remoteStream is a stream of grpc-go that takes messages that were prepared.
type remoteStream struct{ grpc.ClientStream }

func (s remoteStream) SendMsg(m any) error { return s.ClientStream.SendMsg(forGRPC(m)) }
