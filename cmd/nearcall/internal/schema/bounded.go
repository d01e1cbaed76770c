package schema

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxAnswers is how many bytes a server's answers may have in total, where each answer counts for
// answerBytes besides its own. The client bounds the depth of imports, but not their number. Tests
// set it lower.
var maxAnswers = 64 << 20

const answerBytes = 4 << 10

// A bounded connection ends calls when the server has answered too much. Its calls do not
// run concurrently.
type bounded struct {
	grpc.ClientConnInterface
	opts []grpc.CallOption
	left int
}

func (b *bounded) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := b.ClientConnInterface.NewStream(ctx, desc, method, append(opts, b.opts...)...)
	return boundedStream{stream, b}, err
}

type boundedStream struct {
	grpc.ClientStream
	conn *bounded
}

func (s boundedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if answer, ok := m.(proto.Message); ok {
		s.conn.left -= answerBytes + proto.Size(answer)
	}
	if err == nil && s.conn.left < 0 {
		return status.Error(codes.Internal, "the server's reflection is not usable: it describes too much")
	}
	return err
}
