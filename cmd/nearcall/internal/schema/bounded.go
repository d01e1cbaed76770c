package schema

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
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
	ctx, cancel := context.WithCancel(ctx)
	stream, err := b.ClientConnInterface.NewStream(ctx, desc, method, append(opts, b.opts...)...)
	if err != nil {
		cancel()
		return nil, err
	}
	return boundedStream{stream, b, cancel}, nil
}

type boundedStream struct {
	grpc.ClientStream
	conn   *bounded
	cancel context.CancelFunc
}

// closeTime is how long a server may take to end a call.
const closeTime = time.Second

// CloseSend ends the sending, and waits until the server has ended the call. The reflection client
// would cancel it, which is an error in the server's statistics.
func (s boundedStream) CloseSend() error {
	defer s.cancel()
	defer time.AfterFunc(closeTime, s.cancel).Stop()
	err := s.ClientStream.CloseSend()
	for s.ClientStream.RecvMsg(new(emptypb.Empty)) == nil {
	}
	return err
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
