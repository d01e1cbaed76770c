package promises

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

type downloads = grpc.ServerStreamingServer[pb.StreamingOutputCallResponse]

// A service has the handlers that a promise sets. Without one, UnaryCall answers with as many bytes as
// the request asks for.
type service struct {
	pb.UnimplementedTestServiceServer
	unary    func(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error)
	upload   func(grpc.ServerStream) error
	download func(downloads) error
}

// order tells the race detector that what a handler does happens before its client in another
// process has its answer.
var order atomic.Uint64

func (s *service) UnaryCall(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	defer order.Add(1)
	if s.unary != nil {
		return s.unary(ctx, in)
	}
	return &pb.SimpleResponse{Payload: payload(int(in.GetResponseSize()))}, nil
}

func (s *service) StreamingInputCall(in grpc.ClientStreamingServer[pb.StreamingInputCallRequest, pb.StreamingInputCallResponse]) error {
	return s.upload(in)
}

func (s *service) FullDuplexCall(in grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	return s.upload(in)
}

func (s *service) StreamingOutputCall(_ *pb.StreamingOutputCallRequest, out downloads) error {
	return s.download(out)
}

func payload(n int) *pb.Payload { return &pb.Payload{Body: make([]byte, n)} }

// A watch sees handlers begin and end.
type watch struct {
	begun   chan context.Context
	ended   chan error // what the handler has returned
	release chan struct{}
}

func newWatch() *watch {
	return &watch{make(chan context.Context, 100), make(chan error, 100), make(chan struct{})}
}

// run runs a handler.
func (w *watch) run(ctx context.Context, handler func() error) error {
	w.begun <- ctx
	err := handler()
	w.ended <- err
	return err
}

// hold is a unary handler. If the request has a payload, it waits for the end of its context or for
// release.
func (w *watch) hold(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	if in.GetPayload() == nil {
		return &pb.SimpleResponse{}, nil
	}
	return &pb.SimpleResponse{Payload: in.GetPayload()}, w.run(ctx, func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.release:
			return nil
		}
	})
}

// receive is the handler of an upload. It waits for a message.
func (w *watch) receive(in grpc.ServerStream) error {
	return w.run(in.Context(), func() error { return in.RecvMsg(new(pb.StreamingInputCallRequest)) })
}

// held is the request of a call that waits.
func held() *pb.SimpleRequest { return &pb.SimpleRequest{Payload: payload(1)} }

// call makes a call on a goroutine.
func call(ctx context.Context, c caller, in *pb.SimpleRequest) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := c.unary(ctx, in)
		done <- err
	}()
	return done
}

// patience is how long an event may take that must come.
const patience = 20 * time.Second

// await returns what c gets.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("in %v it did not come about that %s", patience, what)
		panic("unreachable")
	}
}

func wantCode(t *testing.T, what string, err error, want ...codes.Code) {
	t.Helper()
	got := codeOf(err)
	for _, code := range want {
		if got == code {
			return
		}
	}
	t.Errorf("%s: %v (%v), want %v", what, got, err, want)
}

// codeOf returns the code of the status that a handler's err becomes.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}
